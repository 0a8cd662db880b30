"""The conformance suite, for authors of array libraries and adapters; the core never imports it.

A *variant* is one framework on one device in one mode. Variants of the package are selected by name. A third party's
is an instance of `Variant` or a subclass, selected by module and attribute. In ``mylib/conformance.py``::

    from portable_nce.testing import Variant

    VARIANT = Variant(name="mylib", module="mylib", library="mylib", dtypes=("float64", "float32"))

Then, with the extra ``portable-nce[test]`` installed::

    pytest -p portable_nce.testing.plugin --pyargs portable_nce.testing.suite --variant mylib.conformance:VARIANT

Nothing is skipped: a test that the library cannot pass fails, and a variant that cannot run is an error. Deselected are
only tests of dtypes that the variant lacks, of a second device if it has none, and of sizes above its ``largest``.
"""

from .cases import CASES, Case, make_cases
from .ranks import Rank, run_ranks
from .variants import VARIANTS, Variant

__all__ = ["CASES", "VARIANTS", "Case", "Rank", "Variant", "make_cases", "run_ranks"]

__dir__ = __all__.copy  # what completion offers

"""The conformance suite, for whoever brings an array library or an adapter; the core never imports it.

A *variant* is one framework on one device in one mode. Those of the package are run by name; that of a third party is
an instance of a subclass of `Variant`, and is run by where it stands. In ``mylib/conformance.py``::

    from portable_nce.testing import Variant

    VARIANT = Variant(name="mylib", module="mylib", library="mylib", dtypes=("float64", "float32"))

Then, with the extra ``portable-nce[test]`` installed::

    pytest -p portable_nce.testing.plugin --pyargs portable_nce.testing.suite --variant mylib.conformance:VARIANT

Nothing is skipped: a test that the library cannot pass fails, and a variant that cannot run at all is an error. Only
tests of dtypes that the variant does not have, of a second device where it names none, or of sizes above its
``largest``, are deselected.
"""

from .cases import CASES, Case, make_cases
from .ranks import ThreadRank, run_ranks
from .variants import VARIANTS, Variant

__all__ = ["CASES", "VARIANTS", "Case", "ThreadRank", "Variant", "make_cases", "run_ranks"]

"""What the conformance suite and ``python -m portable_nce check`` share; the core never imports it."""

from .cases import CASES, Case, make_cases

__all__ = ["CASES", "Case", "make_cases"]

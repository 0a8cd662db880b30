"""Estimates of mutual information with lower limits, from paired samples of two arrays."""

from __future__ import annotations

from .independence import IndependenceTest
from .information import independence_test, information_by_column, mutual_information
from .relations import ColumnInformation, ColumnTable, ConditionalInformation
from .result import MutualInformation, Settings

__all__ = [
    "ColumnInformation",
    "ColumnTable",
    "ConditionalInformation",
    "IndependenceTest",
    "MutualInformation",
    "Settings",
    "independence_test",
    "information_by_column",
    "mutual_information",
]

__dir__ = __all__.copy  # what completion offers

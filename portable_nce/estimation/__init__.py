"""Estimates of mutual information with lower limits, from paired samples of two arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.checks import refuses_other_names
from .differences import InformationDifference, difference
from .independence import IndependenceTest
from .information import independence_test, information_by_column, mutual_information
from .relations import ColumnInformation, ColumnTable, ConditionalInformation
from .result import MutualInformation, Settings
from .texts import ResultTable, TableRow, table
from .transfer import transfer_entropy

__all__ = [
    "ColumnInformation",
    "ColumnTable",
    "ConditionalInformation",
    "IndependenceTest",
    "InformationDifference",
    "MutualInformation",
    "ResultTable",
    "Settings",
    "TableRow",
    "difference",
    "independence_test",
    "information_by_column",
    "mutual_information",
    "table",
    "transfer_entropy",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)

"""Estimates of mutual information with lower limits, from paired samples of two arrays."""

from __future__ import annotations

from .information import information_by_column, mutual_information
from .relations import ColumnInformation, ColumnTable, ConditionalInformation
from .result import MutualInformation, Settings

__all__ = [
    "ColumnInformation",
    "ColumnTable",
    "ConditionalInformation",
    "MutualInformation",
    "Settings",
    "information_by_column",
    "mutual_information",
]

__dir__ = __all__.copy  # what completion offers

"""Estimates of mutual information with intervals, from paired samples of two arrays."""

from __future__ import annotations

from .information import MutualInformation, mutual_information

__all__ = ["MutualInformation", "mutual_information"]

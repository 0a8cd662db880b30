"""Adapters, one file per array library."""

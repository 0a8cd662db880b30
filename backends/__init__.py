"""The adapters, one file a framework."""

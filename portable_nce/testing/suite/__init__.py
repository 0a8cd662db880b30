"""The conformance suite: tests that hold on every array library; see `portable_nce.testing`."""

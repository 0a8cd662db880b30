"""Losses of embeddings: each chooses a similarity, a pairing and an objective."""

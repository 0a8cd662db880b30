"""The losses of embeddings: thin functions, each a row of the table of similarity, pairing and objective."""

"""The engine: sweeps over the tiles of a score matrix, which ask an objective what its rows are worth."""

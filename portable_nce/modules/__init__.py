"""Framework-specific modules: `modules.torch` and `modules.jax`.

Each imports its framework; nothing else in the package imports them.
"""

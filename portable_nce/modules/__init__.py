"""What belongs to one framework, for users who import it: `modules.torch` and `modules.jax`.

Nothing else of the package imports these modules, and each imports its framework.
"""

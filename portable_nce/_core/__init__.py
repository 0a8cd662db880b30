"""The ground: arrays, namespaces, adapters, checks of arguments, differentiation, numerics. It knows no loss."""

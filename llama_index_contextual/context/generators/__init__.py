"""The context generators of this package, one per module and named after its module."""

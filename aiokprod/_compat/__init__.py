"""Internals of `aiokprod.compat`: settings, errors and views in the form of other clients."""

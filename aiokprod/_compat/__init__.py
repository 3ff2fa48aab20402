"""Internals of `aiokprod.compat`: settings, errors and views with the interfaces of other clients.
"""

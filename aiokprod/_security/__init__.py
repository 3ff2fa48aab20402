"""Secrets and token providers. `aiokprod.security` exports the public classes."""

"""Secrets and token providers. `aiokprod.security` exports what is public."""

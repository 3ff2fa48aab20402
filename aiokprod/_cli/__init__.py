"""The commands of `aiokprod`."""

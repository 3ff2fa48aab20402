"""Fields of the configuration and the checks of their values. `aiokprod.config` is public."""

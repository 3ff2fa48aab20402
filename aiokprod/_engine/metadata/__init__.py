"""The metadata cache and its updates."""

"""The metadata cache: what it holds, when it is refreshed, and who waits for it."""

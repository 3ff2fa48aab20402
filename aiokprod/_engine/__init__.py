"""Topics, batches, outcomes, metadata and transactions; no sockets. `ports` is what it needs."""

"""Topics, batches, outcomes, metadata and transactions, without sockets. `ports` has the interfaces
that it needs."""

"""The core of the producer, without sockets: batches, outcomes, metadata, sequences and
transactions. `ports` defines the network interfaces that it uses."""

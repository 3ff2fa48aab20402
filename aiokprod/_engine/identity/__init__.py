"""Producer ids, epochs, sequences and transactions, and the requests that obtain them."""

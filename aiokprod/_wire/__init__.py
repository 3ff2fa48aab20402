"""Kafka's wire protocol: bytes to typed values and back. No clock, no I/O, no policy."""

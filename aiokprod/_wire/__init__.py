"""Kafka's wire protocol: converts between bytes and typed values. No clock, no I/O, no policy."""

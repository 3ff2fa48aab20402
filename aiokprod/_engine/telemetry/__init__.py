"""Metrics pushed to the brokers (KIP-714)."""

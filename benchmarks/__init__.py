"""Benchmarks that compare aiokprod with other clients on the same brokers."""

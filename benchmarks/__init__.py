"""Benchmarks that run aiokprod beside other clients on the same brokers."""

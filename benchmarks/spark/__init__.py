"""Compares the PySpark sink with Spark's own sinks: `python -m benchmarks.spark`."""

"""The PySpark sink beside Spark's own sinks: `python -m benchmarks.spark`."""

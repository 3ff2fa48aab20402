"""A PySpark pipeline that writes to Kafka and audits the result: `make spark-demo`."""

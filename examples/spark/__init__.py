"""A pipeline on PySpark that writes to Kafka and audits what it wrote: `make spark-demo`."""

"""Testing kit: virtual time, in-memory network, a scripted Kafka cluster."""

"""The metrics of a producer: their definitions, and the counters by topic and broker."""

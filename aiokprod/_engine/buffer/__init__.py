"""Buffered records: batches by partition, their memory, and the batches that are ready to be
sent."""

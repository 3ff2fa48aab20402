"""Records that wait: batches by partition, their memory, and what is ready to be sent."""

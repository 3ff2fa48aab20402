"""The record buffer: batches by partition, their memory, and the selection of batches to send."""

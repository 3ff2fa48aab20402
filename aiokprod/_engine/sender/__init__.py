"""Sends batches that are due in Produce requests, and completes them after the response."""

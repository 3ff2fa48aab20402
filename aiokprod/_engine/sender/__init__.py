"""Produce requests: sends batches when they are due, and completes them after the response."""

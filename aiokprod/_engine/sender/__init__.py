"""Produce requests: what is sent when, and what becomes of each batch after the response."""

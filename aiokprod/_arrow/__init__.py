"""Compiled code that sends the rows of Arrow tables (Arrow C data interface) as records."""

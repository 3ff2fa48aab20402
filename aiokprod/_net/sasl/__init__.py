"""SASL authentication with a broker. Each mechanism has a module."""

"""SASL: the exchange with a broker, one module per mechanism."""

"""Tables of the Arrow C data interface as rows of records, compiled."""

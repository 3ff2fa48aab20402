"""The compiled core: the only code that runs once per record.

Imports nothing from the rest of the package. `batch` contains the batch encoder and the delivery
handle, `append` the path from a `submit` call to bytes in an open batch.
"""

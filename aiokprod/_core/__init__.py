"""The compiled core: the only code that runs once per record.

The core imports nothing from the rest of the package. `batch` contains the batch encoder and the
delivery handle. `append` contains the path from a `submit` call to bytes in an open batch.
"""

"""Runs `python -m aiokprod.testing.fake_cluster`. See `console`."""

import sys

from aiokprod.testing.fake_cluster.console import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m aiokprod.testing.fake_cluster`: see `console`."""

import sys

from aiokprod.testing.fake_cluster.console import main

if __name__ == "__main__":
    sys.exit(main())

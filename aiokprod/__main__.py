"""`python -m aiokprod`: the command line."""

import sys

from aiokprod_cli import main

if __name__ == "__main__":
    sys.exit(main())

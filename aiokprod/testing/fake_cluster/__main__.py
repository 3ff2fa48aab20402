"""`python -m aiokprod.testing.fake_cluster`: see `console`."""

import sys

from aiokprod.testing.fake_cluster.console import main

sys.exit(main())

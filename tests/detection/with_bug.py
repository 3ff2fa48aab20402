"""`python -m tests.detection.with_bug NAME TESTS`: pytest with a reintroduced bug ("": none)."""

from __future__ import annotations

import sys

import pytest

from tests.detection.search import put_back


def main() -> int:
    """Return the exit status of pytest."""
    name, *tests = sys.argv[1:]
    with pytest.MonkeyPatch.context() as patch:
        if name:
            put_back(name, patch)
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


if __name__ == "__main__":
    sys.exit(main())

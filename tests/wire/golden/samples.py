"""Write the samples that `RoundTrip.java` converts to `golden.txt`."""

from __future__ import annotations

from tests.wire.strategies import VERSIONED, filled


def main() -> None:
    for message, version in VERSIONED:
        kind = "response" if message.__name__.endswith("Response") else "request"
        for null in (False, True):
            data = filled(message, version, null=null).encode(version).hex()
            print(kind, message.api_key, version, data)


if __name__ == "__main__":
    main()

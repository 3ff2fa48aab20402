"""`python -m tests.fuzz.coverage_guided -max_total_time=60`: the same targets under Atheris.

Atheris (libFuzzer) is not a requirement of the project: `pip install atheris`. It measures the
coverage of the Python parts; the compiled decoders are not instrumented.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["aiokprod"]):
    from aiokprod._wire.frames import FrameReader
    from aiokprod._wire.headers import decode_response_header
    from aiokprod.errors import DecodeError, ProtocolError
    from tests.fuzz.mutations import responses

RESPONSES = list(responses())


def one_input(data: bytes) -> None:
    """Decode one input. The first byte selects a response and version; the rest also serves as a
    stream of frames."""
    if not data:
        return
    message, version = RESPONSES[data[0] % len(RESPONSES)]
    reader = FrameReader(1 << 20)
    try:
        for frame in reader.feed(data[1:]):
            message.decode(decode_response_header(frame, message.api_key, version)[1], version)
    except ProtocolError:
        return
    try:
        message.decode(data[1:], version)
    except DecodeError:
        return


def main() -> None:
    """Run libFuzzer with the arguments of the command line."""
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

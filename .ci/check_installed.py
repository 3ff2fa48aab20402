"""Checks an installed wheel: imports, every codec, and records sent to a cluster in memory.

    python .ci/check_installed.py

The script needs only the wheel and its dependencies, and no compiler.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
import time
from pathlib import Path

import aiokprod
from aiokprod import Producer
from aiokprod._wire.compression import CODEC_NAMES, codec_for
from aiokprod.testing import FakeCluster, run

OPTIONAL = ("snappy",)
"""Codecs that need an extra package."""


def check_codecs() -> list[str]:
    codecs = [name for name in CODEC_NAMES if usable(name)]
    data = b"0123456789" * 10_000
    for name in codecs:
        codec = codec_for(name)
        if codec.decompress(codec.compress(data), len(data)) != data:
            raise SystemExit(f"{name} does not return what it was given")
    return codecs


def usable(name: str) -> bool:
    try:
        codec_for(name)
    except aiokprod.ConfigError:
        if name in OPTIONAL:
            return False
        raise
    return True


def check_extensions() -> int:
    """Import every compiled module. Return the number of these modules."""
    count = 0
    for module in pkgutil.walk_packages(aiokprod.__path__, "aiokprod."):
        spec = importlib.util.find_spec(module.name)
        origin = "" if spec is None else str(spec.origin)
        if origin.endswith((".so", ".pyd")):
            importlib.import_module(module.name)
            count += 1
    if count == 0 or aiokprod.COMPILED is not True:
        raise SystemExit("there are no compiled modules")
    return count


def check_records(codec: str) -> None:
    cluster = FakeCluster(default_partitions=1)

    async def main() -> list[int | None]:
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            compression_type=codec,
            environment=cluster.environment(),
        ) as producer:
            metadata = [await producer.send("greetings", b"hello") for _ in range(3)]
        return [one.offset for one in metadata]

    offsets = run(main)
    if offsets != [0, 1, 2]:
        raise SystemExit(f"{codec}: offsets are {offsets}")


def main() -> int:
    started = time.monotonic()
    if "site-packages" not in Path(aiokprod.__file__).parts:
        raise SystemExit(f"{aiokprod.__file__} is not an installed package")
    extensions = check_extensions()
    codecs = check_codecs()
    for codec in codecs:
        check_records(codec)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"aiokprod {aiokprod.__version__} on Python {sys.version.split()[0]}: {extensions} "
        f"extensions, codecs {', '.join(codecs)}, GIL {'on' if gil else 'off'}, "
        f"{time.monotonic() - started:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

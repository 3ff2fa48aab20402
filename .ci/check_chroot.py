"""Installs the wheel in a root file system that contains only Python, and runs the quickstart.

    python .ci/check_chroot.py [--limit 60]

The root file system consists of this Python's prefix without installed packages, the shared
libraries that Python needs, certificates and the settings of pip. It has no shell and no compiler.
The checks in it are:

1. `pip install` of the wheel with the extra `testing`, and the program of docs/quickstart.md, which
   must print the output on that page. Both together must take at most `--limit` seconds.
2. `pip install` of the sdist, which must fail with one line that names the packages to install.

In a new environment of this system, which has a compiler, `pip install` of the sdist and the same
program must succeed. The script needs root (chroot, mount), Linux, and access to a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PREFIX: Final = Path(sys.base_prefix).resolve()
PYTHON: Final = PREFIX / "bin" / f"python3.{sys.version_info[1]}"
SKIPPED: Final = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "*.a")
SETTINGS: Final = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/pip.conf", "/etc/ssl/certs",
)  # fmt: skip
ALWAYS_PRESENT: Final = (
    "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6", "libresolv.so.2",
    "libnss_*.so.2", "libstdc++.so.6", "libgcc_s.so.1",
)  # fmt: skip
"""Libraries of glibc and GCC that wheels may need, and that every image with Python contains."""

DEVICES: Final = ("null", "zero", "urandom", "random")
ADVICE: Final = re.compile(r"aiokprod: there is no C compiler \(\S+\); install \S")


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command without standard input. The result contains its output."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL, **options
    )  # fmt: skip
    return done


def run_checked(command: Sequence[str | Path], **options: Any) -> str:
    """Run a command that must succeed, and return its standard output."""
    done = run(command, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def copy_libraries(binaries: Sequence[Path], root: Path) -> None:
    """Copy the shared libraries that binaries need, to the same paths as on this system."""
    found = run(["ldd", *binaries]).stdout
    names = set(re.findall(r"(/\S+) \(0x", found))
    folder = next(Path(name).parent for name in names if Path(name).name.startswith("libc.so"))
    for pattern in ALWAYS_PRESENT:
        for place in (folder, Path("/usr") / folder.relative_to("/")):
            names |= {str(path) for path in place.glob(pattern)}
    for name in names:
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)


def make_root(root: Path) -> None:
    """Create the root file system in the folder `root`."""
    shutil.copytree(PREFIX, root / str(PREFIX).lstrip("/"), ignore=SKIPPED, symlinks=True)
    extensions = [*PREFIX.glob("lib/python3*/lib-dynload/*.so"), *PREFIX.glob("lib/*.so*")]
    copy_libraries([PYTHON, *extensions], root)
    for name in SETTINGS:
        source, target = Path(name), root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore_dangling_symlinks=True)
        elif source.exists():
            shutil.copy(source, target)
    for name in ("tmp", "dev/shm", "proc", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in DEVICES:
        os.mknod(root / "dev" / name, 0o020666, os.stat(f"/dev/{name}").st_rdev)
    links = [Path(link) for link in os.environ.get("PIP_FIND_LINKS", "").split() if link[:1] == "/"]
    for link in links:
        if link.is_dir():
            shutil.copytree(link, root / str(link).lstrip("/"), dirs_exist_ok=True)


def environment() -> dict[str, str]:
    """Return only those environment variables of this process that configure pip and proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    return kept | {"HOME": "/root", "PATH": "/app/bin", "LANG": "C.UTF-8"}


class Root:
    """Runs commands in a root file system with /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return a command that runs in a separate mount namespace, so that no mount remains."""
        mount = f'mount -t proc proc {self.folder}/proc && exec chroot {self.folder} "$@"'
        return ["unshare", "--mount", "/bin/sh", "-c", mount, "sh", *words]

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return run(self.command(*words), env=environment() | {"PATH": os.environ["PATH"]})

    def check(self, *words: str | Path) -> str:
        return run_checked(self.command(*words), env=environment() | {"PATH": os.environ["PATH"]})


def quickstart() -> tuple[str, str]:
    """Return the program of docs/quickstart.md and its documented output."""
    text = (Path(__file__).parent.parent / "docs" / "quickstart.md").read_text()
    programs = [one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def main"
                in one]  # fmt: skip
    printed = re.search(r"It prints\n\n```\n(.*?)```", text, re.DOTALL)
    assert len(programs) == 1
    assert printed is not None
    return programs[0], printed[1]


def check_output(found: str, expected: str, where: str) -> None:
    """Compare the outputs. The partition may differ, because the mock cluster creates several."""
    found = re.sub(r"partition \d", "partition 0", found)
    if found != expected:
        raise SystemExit(f"{where}: the quickstart prints\n{found}instead of\n{expected}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=60, help="seconds for wheel and quickstart")
    limit = parser.parse_args().limit
    program, expected = quickstart()
    with tempfile.TemporaryDirectory(prefix="aiokprod-root-") as temporary:
        folder = Path(temporary)
        dist, root = folder / "dist", folder / "root"
        run_checked([sys.executable, "-m", "build", "--outdir", dist, "."])
        (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        make_root(root)
        for file in (wheel, sdist):
            shutil.copy(file, root / "tmp")
        (root / "tmp" / "hello.py").write_text(program)
        inside = Root(root)
        if inside.run("/bin/sh", "-c", "true").returncode == 0:
            raise SystemExit("the root file system has a shell: it is not the one that was made")
        began = time.monotonic()
        inside.check(PYTHON, "-m", "venv", "/app")
        inside.check("/app/bin/python", "-m", "pip", "-q", "install",
                     f"/tmp/{wheel.name}[testing]")  # fmt: skip
        check_output(inside.check("/app/bin/python", "/tmp/hello.py"), expected, "wheel")
        took = time.monotonic() - began
        print(f"wheel: installed and the quickstart run in {took:.1f} s, without a compiler")
        inside.check(PYTHON, "-m", "venv", "/other")
        refused = inside.run("/other/bin/python", "-m", "pip", "-q", "install",
                             f"/tmp/{sdist.name}")  # fmt: skip
        advice = [line for line in refused.stderr.splitlines() if ADVICE.search(line)]
        if refused.returncode == 0 or len(advice) != 1:
            raise SystemExit(f"sdist without a compiler:\n{refused.stderr}")
        print(f"sdist without a compiler: {advice[0].strip()}")
        run_checked([PYTHON, "-m", "venv", folder / "app"])
        python = folder / "app" / "bin" / "python"
        run_checked([python, "-m", "pip", "-q", "install", f"{sdist}[testing]"])
        (folder / "hello.py").write_text(program)
        check_output(run_checked([python, folder / "hello.py"], cwd=folder), expected, "sdist")
        print("sdist with a compiler: installed, and the quickstart run")
        if took > limit:
            raise SystemExit(f"{took:.1f} s are more than {limit:g} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

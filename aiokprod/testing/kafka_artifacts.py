"""Finds a JVM, and finds or downloads the jars of a Kafka release.

Maven downloads the published artifacts once into a per-user cache with one folder per release. The
folder is created atomically, and a lock makes concurrent processes wait for each other.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KAFKA_4: Final = "4.3.1"
KAFKA_3: Final = "3.9.1"
KAFKA_2: Final = "2.1.1"
"""The oldest supported release. On Java 17, it needs a newer ZooKeeper client than its own."""

MINIMUM_JAVA: Final = 17
FETCH_TIMEOUT: Final = 900.0
"""Timeout for Maven to download one release (about 100 jars), s."""

_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

_ZOOKEEPER: Final = "3.5.9"
"""Version of the ZooKeeper client. Earlier clients cannot parse host names on Java 14 and newer
(ZOOKEEPER-3779)."""

# slf4j-simple replaces the logging backend of the release. It needs no configuration file and logs
# to standard error, which goes to the node's log.
_POM: Final = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>aiokprod.testing</groupId>
  <artifactId>kafka-runtime</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """\
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
      <exclusions>
        <exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId></exclusion>
        <exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-log4j12</artifactId></exclusion>
      </exclusions>
    </dependency>"""


def needs_zookeeper(version: str) -> bool:
    """Returns True for releases before 3.0, whose KRaft mode has no transactions."""
    return int(version.split(".")[0]) < 3


def _pom(version: str) -> str:
    wanted = (
        [
            ("org.apache.kafka", "kafka_2.12", version),
            ("org.apache.zookeeper", "zookeeper", _ZOOKEEPER),
        ]
        if needs_zookeeper(version)
        else [
            ("org.apache.kafka", "kafka_2.13", version),
            ("org.apache.kafka", "kafka-tools", version),
        ]
    )
    return _POM.format(
        dependencies="\n".join(
            _DEPENDENCY.format(group=group, artifact=artifact, version=chosen)
            for group, artifact, chosen in wanted
        )
    )


class MissingTool(RuntimeError):
    """A program that real brokers need is not installed."""


def cache_root() -> Path:
    """Returns the folder of all releases: `AIOKPROD_CACHE` if set, otherwise a folder in the user's
    cache."""
    chosen = os.environ.get("AIOKPROD_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aiokprod" / "kafka"


def find_java() -> str | None:
    """Returns the path of a JVM (Java 17 or newer), or None. `JAVA_HOME` precedes `PATH`."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(on_path)
    for candidate in candidates:
        version = _java_version(candidate)
        if version is not None and version >= MINIMUM_JAVA:
            return candidate
    return None


def _java_version(java: str) -> int | None:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def class_path(version: str) -> str:
    """Returns the class path of Kafka `version`. Downloads the jars if they are not in the cache.

    Blocks for up to `FETCH_TIMEOUT` seconds.

    Raises:
        MissingTool: Maven is not installed.
        RuntimeError: the artifacts cannot be resolved. The text contains Maven's output.
    """
    target = cache_root() / version
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / f"{version}.lock"):
            if not target.is_dir():
                _fetch(version, target)
    return str(target / "*")


def _fetch(version: str, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingTool(
            f"Kafka {version} is not in {target.parent} and Maven (mvn) to download it is not "
            "installed"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version}-") as scratch:
        pom = Path(scratch) / "pom.xml"
        jars = Path(scratch) / "jars"
        pom.write_text(_pom(version))
        command = [maven, "-B", "-q", "-f", str(pom), _COPY]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        try:
            answer = subprocess.run(
                command,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"Maven did not download Kafka {version} within {FETCH_TIMEOUT:.0f} s"
            ) from error
        if answer.returncode != 0:
            words = (answer.stdout + answer.stderr)[-3000:]
            raise RuntimeError(f"Maven could not download Kafka {version}:\n{words}")
        jars.rename(target)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds an advisory lock between processes. Does nothing where `fcntl` is missing."""
    try:
        import fcntl
    except ImportError:  # not POSIX; rename() still creates the folder atomically
        yield
        return
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield

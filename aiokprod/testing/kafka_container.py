"""Runs a KRaft node as a container, for machines with a Docker engine but without Java.

This needs `testcontainers` and a Docker engine on Linux. The containers use the host's network, so
that ports and addresses are the same as in `kafka_node`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


def engine_available() -> bool:
    """Returns True if testcontainers is installed and a Docker engine responds."""
    try:
        import docker
        import testcontainers.core.container  # noqa: F401
    except ImportError:
        return False
    try:
        client = docker.from_env()
        client.ping()
    except Exception:  # the docker package raises its own errors and errors of its HTTP client
        return False
    client.close()
    return True


class ContainerNode:
    """A combined broker and controller in a container of the `apache/kafka` image."""

    def __init__(
        self,
        node_id: int,
        properties: Mapping[str, str],
        *,
        version: str,
        cluster_id: str,
        heap: str,
    ) -> None:
        from testcontainers.core.container import DockerContainer

        self.node_id = node_id
        container = DockerContainer(f"apache/kafka:{version}").with_kwargs(network_mode="host")
        container = container.with_env("CLUSTER_ID", cluster_id)
        container = container.with_env("KAFKA_HEAP_OPTS", f"-Xmx{heap}")
        for name, value in properties.items():
            container = container.with_env(_variable(name), value)
        self._container: Any = container
        self._created = False

    @property
    def running(self) -> bool:
        if not self._created:
            return False
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        return bool(wrapped.status in ("running", "paused"))

    def format(self) -> None:
        """Does nothing, because the image formats empty storage when it starts."""

    def start(self) -> None:
        if self._created:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._created = True

    def kill(self) -> None:
        if self.running:
            with contextlib.suppress(
                Exception
            ):  # resume first: a paused container cannot be killed
                self.resume()
            self._container.get_wrapped_container().kill()

    def terminate(self, timeout: float = 60.0) -> None:
        if self.running:
            self._container.get_wrapped_container().stop(timeout=int(timeout))

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def remove(self) -> None:
        """Removes the container and its storage."""
        if self._created:
            self._container.stop()
            self._created = False

    def log_tail(self, lines: int = 30) -> str:
        if not self._created:
            return ""
        return str(self._container.get_wrapped_container().logs(tail=lines), "utf-8", "replace")


def _variable(name: str) -> str:
    """Returns the image's environment variable for a property. A dot becomes _, a dash __, and an
    underscore ___."""
    spelled = name.replace("_", "___").replace("-", "__").replace(".", "_")
    return "KAFKA_" + spelled.upper()

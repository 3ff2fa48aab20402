"""KafkaCluster: real Apache Kafka brokers for tests, demos and benchmarks.

    async with KafkaCluster(nodes=3) as cluster:
        await cluster.create_topic("flights", partitions=6, replication_factor=3)
        ...
        await cluster.kill(await cluster.leader_of("flights", 0))

The nodes run in combined KRaft mode on the loopback interface. They use the release's Maven
artifacts on a JVM (Java 17 or newer), or the `apache/kafka` image if Docker is available and Java
is not. Releases before 3.0 run with a ZooKeeper server and need Java. A cluster is not bound to an
event loop, because its calls run in worker threads. `python -m aiokprod.testing.kafka_cluster` runs
a cluster until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import base64
import contextlib
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from aiokprod.testing.kafka_admin import ClusterAdmin
from aiokprod.testing.kafka_artifacts import (
    KAFKA_2,
    KAFKA_3,
    KAFKA_4,
    MissingTool,
    class_path,
    find_java,
    needs_zookeeper,
)
from aiokprod.testing.kafka_container import ContainerNode, engine_available
from aiokprod.testing.kafka_node import BrokerNode, JavaNode, free_ports
from aiokprod.testing.kafka_zookeeper import (
    ZooKeeperBroker,
    ZooKeeperServer,
    broker_properties,
    server_properties,
)
from aiokprod.testing.reaper import Reaper

__all__ = ["KAFKA_2", "KAFKA_3", "KAFKA_4", "ClusterError", "KafkaCluster", "MissingTool"]

HOST: Final = "127.0.0.1"
START_TIMEOUT: Final = 180.0
"""Time limit until all nodes serve requests, s. A start takes about 11 s on two idle cores."""


class ClusterError(RuntimeError):
    """A cluster did not start, or a node did not respond as expected. The text quotes the node's
    log."""


class KafkaCluster:
    """`nodes` brokers of one Kafka release.

    `config` overrides server properties of every node. `heap` is a JVM heap size such as "512m".
    Nodes are numbered from 1. Restarted nodes keep their ports and their storage.

    `listeners` maps names of further listeners to their properties, without the prefix
    `listener.name.…`; "security.protocol" is required. `scram_users` maps user names to passwords
    for SCRAM-SHA-256 and SCRAM-SHA-512. Both arguments need Java.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        version: str = KAFKA_4,
        config: Mapping[str, str] | None = None,
        heap: str = "512m",
        keep_logs: bool = False,
        listeners: Mapping[str, Mapping[str, str]] | None = None,
        scram_users: Mapping[str, str] | None = None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: a cluster has at least one")
        self.version = version
        self.keep_logs = keep_logs
        self.node_ids = tuple(range(1, nodes + 1))
        self._config = dict(config or {})
        self._listeners = {name.upper(): dict(entry) for name, entry in (listeners or {}).items()}
        self._scram_users = dict(scram_users or {})
        self._listener_ports: dict[tuple[str, int], int] = {}
        self._heap = heap
        self._nodes: dict[int, BrokerNode] = {}
        self._zookeeper: ZooKeeperServer | None = None
        self._ports: dict[int, int] = {}
        self._zookeeper_port = 0
        self._folder: Path | None = None
        self._reaper: Reaper | None = None
        self._admin: ClusterAdmin | None = None

    # -- start and stop -----------------------------------------------------------------------

    async def __aenter__(self) -> KafkaCluster:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self, timeout: float = START_TIMEOUT) -> None:
        """Starts all nodes and waits until every node serves requests. Raises MissingTool if
        neither Java with Maven nor Docker is available, ClusterError if a node does not start."""
        await asyncio.to_thread(self.start_blocking, timeout)

    async def stop(self) -> None:
        """Stops all nodes and removes their storage. A second call does nothing."""
        await asyncio.to_thread(self.stop_blocking)

    def start_blocking(self, timeout: float = START_TIMEOUT) -> None:
        """Synchronous form of `start`, for fixtures."""
        if self._folder is not None:
            raise ClusterError("this cluster was started already")
        self._build()
        atexit.register(self.stop_blocking)
        try:
            with ThreadPoolExecutor(len(self._nodes)) as pool:
                list(pool.map(lambda node: node.format(), self._nodes.values()))
            if self._zookeeper is not None:
                self._zookeeper.start()
                self._zookeeper.wait_listening(self._zookeeper_port, timeout)
            for node in self._nodes.values():
                node.start()
            self._await_serving(self.node_ids, timeout)
        except BaseException:
            self.keep_logs = True
            self.stop_blocking()
            raise

    def stop_blocking(self) -> None:
        """Synchronous form of `stop`, for fixtures. Nodes are killed, because their storage is
        removed anyway."""
        atexit.unregister(self.stop_blocking)
        for node in self._nodes.values():
            node.kill()
            if isinstance(node, ContainerNode):
                node.remove()
        self._nodes.clear()
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper = None
        self._admin = None
        if self._folder is not None and self._reaper is not None:
            self._tidy(self._folder, self._reaper)
        self._folder = self._reaper = None

    def _tidy(self, folder: Path, reaper: Reaper) -> None:
        for data in folder.glob("*/data"):
            shutil.rmtree(data, ignore_errors=True)
        if self.keep_logs:
            print(f"broker logs kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        reaper.forget_folder(folder)
        reaper.close()

    def _build(self) -> None:
        java = find_java()
        if java is None and not engine_available():
            raise MissingTool(
                "real brokers need Java 17 or newer with Maven, or a Docker engine with "
                "testcontainers installed; neither was found"
            )
        if java is None and (self._listeners or self._scram_users):
            raise MissingTool("listeners beside the plaintext one need Java 17 or newer")
        if needs_zookeeper(self.version):
            if java is None:
                raise MissingTool(f"Kafka {self.version} needs Java 17 or newer")
            if self._listeners or self._scram_users:
                raise ValueError(
                    f"Kafka {self.version}: listeners and scram_users need a release from 3.0"
                )
        jars = class_path(self.version) if java is not None else ""
        self._folder = Path(tempfile.mkdtemp(prefix="aiokprod-kafka-"))
        self._reaper = Reaper()
        self._reaper.add_folder(self._folder)
        count = len(self.node_ids)
        ports = free_ports((2 + len(self._listeners)) * count + 1)
        self._zookeeper_port = ports.pop()
        more = iter(ports[2 * count :])
        self._listener_ports = {
            (name, node): next(more) for name in self._listeners for node in self.node_ids
        }
        del ports[2 * count :]
        self._ports = dict(zip(self.node_ids, ports, strict=False))
        controllers = dict(zip(self.node_ids, ports[len(self.node_ids) :], strict=True))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # StorageTool would parse a cluster id that begins with a dash as an option.
        cluster_id = "k" + cluster_id[1:]
        if java is not None and needs_zookeeper(self.version):
            self._build_with_zookeeper(java, jars, self._folder, self._reaper, controllers)
            return
        for node_id in self.node_ids:
            properties = self._properties(node_id, controllers)
            self._nodes[node_id] = (
                ContainerNode(
                    node_id,
                    properties,
                    version=self.version,
                    cluster_id=cluster_id,
                    heap=self._heap,
                )
                if java is None
                else JavaNode(
                    node_id,
                    self._folder / f"node-{node_id}",
                    properties,
                    java=java,
                    class_path=jars,
                    cluster_id=cluster_id,
                    heap=self._heap,
                    reaper=self._reaper,
                    format_arguments=self._format_arguments(),
                )
            )

    def _build_with_zookeeper(
        self, java: str, jars: str, folder: Path, reaper: Reaper, controllers: Mapping[int, int]
    ) -> None:
        def node(
            kind: type[JavaNode], number: int, name: str, properties: Mapping[str, str]
        ) -> JavaNode:
            return kind(
                number,
                folder / name,
                properties,
                java=java,
                class_path=jars,
                cluster_id="",
                heap=self._heap,
                reaper=reaper,
            )

        port = self._zookeeper_port
        server = node(ZooKeeperServer, 0, "zookeeper", server_properties(port))
        assert isinstance(server, ZooKeeperServer)
        self._zookeeper = server
        for node_id in self.node_ids:
            properties = broker_properties(self._properties(node_id, controllers), port)
            self._nodes[node_id] = node(ZooKeeperBroker, node_id, f"node-{node_id}", properties)

    def _format_arguments(self) -> list[str]:
        found = []
        for user, password in self._scram_users.items():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                found += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
        return found

    def _listener_properties(self, node_id: int) -> dict[str, str]:
        """Returns the properties of the additional listeners, and the properties that list all
        listeners."""
        uris = [f"PLAINTEXT://{HOST}:{self._ports[node_id]}"]
        protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        properties: dict[str, str] = {}
        for name, entry in self._listeners.items():
            uris.append(f"{name}://{HOST}:{self._listener_ports[name, node_id]}")
            protocols.append(f"{name}:{entry['security.protocol']}")
            prefix = f"listener.name.{name.lower()}."
            for key, value in entry.items():
                if key != "security.protocol":
                    properties[prefix + key] = value
        properties["advertised.listeners"] = ",".join(uris)
        properties["listener.security.protocol.map"] = ",".join(protocols)
        return properties

    def _properties(self, node_id: int, controllers: Mapping[int, int]) -> dict[str, str]:
        replicas = str(min(3, len(self.node_ids)))
        in_sync = "2" if len(self.node_ids) >= 3 else "1"
        broker, controller = self._ports[node_id], controllers[node_id]
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": ",".join(
                f"{voter}@{HOST}:{port}" for voter, port in controllers.items()
            ),
            "num.partitions": "3",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": "3",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": "0",
            # A shorter timeout than the default of 9 s detects a dead broker sooner. It must be
            # long enough that no broker is fenced while several JVMs start on two cores.
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "1000",
            "num.network.threads": "2",
            "num.io.threads": "4",
            # The broker allocates the default of 128 MiB from the heap when it starts.
            "log.cleaner.dedupe.buffer.size": "4194304",
            **self._config,
        }
        if self._listeners:
            secure = self._listener_properties(node_id)
            secure["listeners"] = (
                f"{secure['advertised.listeners']},CONTROLLER://{HOST}:{controller}"
            )
            properties |= secure
        return properties

    # -- addresses ----------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, separated by commas."""
        return ",".join(self.address(node) for node in self.node_ids)

    def listener(self, name: str) -> str:
        """Returns `host:port` of this listener on every node, separated by commas."""
        return ",".join(
            f"{HOST}:{self._listener_ports[name.upper(), node]}" for node in self.node_ids
        )

    def address(self, node: int) -> str:
        """Returns `host:port` of one node."""
        return f"{HOST}:{self._ports[node]}"

    def is_running(self, node: int) -> bool:
        return self._node(node).running

    def pids(self) -> list[int]:
        """Process ids of the running nodes. Nodes in containers are not included."""
        found = (node.pid for node in self._nodes.values() if isinstance(node, JavaNode))
        return [pid for pid in found if pid is not None]

    # -- faults -------------------------------------------------------------------------------

    async def kill(self, node: int) -> None:
        """Kills a node (SIGKILL)."""
        await asyncio.to_thread(self._node(node).kill)

    async def kill_all(self) -> None:
        await asyncio.gather(*(self.kill(node) for node in self.node_ids))

    async def terminate(self, node: int, timeout: float = 60.0) -> None:
        """Shuts down a node in a controlled way (SIGTERM), so that its leaderships move first.
        Kills the node after `timeout` seconds."""
        await asyncio.to_thread(self._node(node).terminate, timeout)

    async def pause(self, node: int) -> None:
        """Freezes a node (SIGSTOP). Its sockets stay open, but it does not respond."""
        await asyncio.to_thread(self._node(node).pause)

    async def pause_all(self) -> None:
        await asyncio.gather(*(self.pause(node) for node in self.node_ids))

    async def resume(self, node: int) -> None:
        await asyncio.to_thread(self._node(node).resume)

    async def resume_all(self) -> None:
        await asyncio.gather(*(self.resume(node) for node in self.node_ids))

    async def start_node(self, node: int, *, wait: bool = True) -> None:
        """Starts a node that was killed or terminated, on the same port and storage."""
        await self.start_nodes((node,), wait=wait)

    async def start_nodes(self, nodes: Iterable[int], *, wait: bool = True) -> None:
        """Starts several nodes concurrently. With `wait`, waits until all nodes serve requests."""
        chosen = tuple(nodes)
        for node in chosen:
            await asyncio.to_thread(self._node(node).start)
        if wait:
            await asyncio.to_thread(self._await_serving, chosen, START_TIMEOUT)

    async def restart(self, node: int, *, wait: bool = True) -> None:
        """Terminates a node if it is running, and starts it again."""
        await self.terminate(node)
        await self.start_node(node, wait=wait)

    # -- topics -------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 3,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic and waits until every partition has a leader. The default replication
        factor is 3, or the number of nodes if that is smaller."""
        factor = replication_factor or min(3, len(self.node_ids))
        await self._ask(lambda admin: admin.create_topic(name, partitions, factor, configs))

    async def delete_topic(self, name: str) -> None:
        await self._ask(lambda admin: admin.delete_topic(name))

    async def create_partitions(self, name: str, total: int) -> None:
        await self._ask(lambda admin: admin.create_partitions(name, total))

    async def leader_of(self, topic: str, partition: int) -> int:
        """Returns the node id of a partition's leader. Waits up to 45 s for an election."""
        give_up = time.monotonic() + 45.0
        while True:
            leader = await asyncio.to_thread(self._client().leader_of, topic, partition)
            if leader is not None:
                return leader
            if time.monotonic() > give_up:
                raise ClusterError(f"{topic}-{partition} has no leader")
            await asyncio.sleep(0.1)

    async def partition_count(self, topic: str) -> int:
        return await asyncio.to_thread(self._client().partition_count, topic)

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """Returns the offset after the last record by partition. Waits up to 45 s for the leaders
        of all partitions. Raises AdminError if a leader cannot be reached."""
        return await asyncio.to_thread(self._client().end_offsets, topic)

    async def serving(self) -> set[int]:
        """Returns the ids of the nodes that the cluster reports as alive. The set is empty if no
        node responds."""
        return await asyncio.to_thread(self._client().broker_ids)

    # -- internals ----------------------------------------------------------------------------

    async def _ask(self, call: Callable[[ClusterAdmin], None]) -> None:
        await asyncio.to_thread(call, self._client())

    def _node(self, node: int) -> BrokerNode:
        if node not in self._nodes:
            raise ClusterError(f"no node {node}: running nodes are {sorted(self._nodes)}")
        return self._nodes[node]

    def _client(self) -> ClusterAdmin:
        if self._admin is None:
            self._admin = ClusterAdmin(self.bootstrap_servers)
        return self._admin

    def _await_serving(self, nodes: Iterable[int], timeout: float) -> None:
        wanted = set(nodes)
        admin = self._client()
        give_up = time.monotonic() + timeout
        # Connect to the nodes too: the cluster reports a killed node as alive until its session
        # expires.
        while not (self._accepting(wanted) and wanted <= admin.broker_ids()):
            ended = [node for node in sorted(wanted) if not self._nodes[node].running]
            if ended:
                raise ClusterError(self._report(ended, "ended while starting"))
            if time.monotonic() > give_up:
                raise ClusterError(self._report(wanted, f"not serving after {timeout:.0f} s"))
            time.sleep(0.1)

    def _accepting(self, nodes: Iterable[int]) -> bool:
        """Returns True if all these nodes accept connections. A registered node accepts them."""
        for node in nodes:
            host, _, port = self.address(node).rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
            except OSError:
                return False
        return True

    def _report(self, nodes: Iterable[int], what: str) -> str:
        tails = "\n".join(f"-- node {n}:\n{self._nodes[n].log_tail(30)}" for n in sorted(nodes))
        return f"Kafka {self.version}: nodes {sorted(nodes)} {what}\n{tails}"


async def _serve(nodes: int, version: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # not implemented on Windows
            loop.add_signal_handler(number, stop.set)
    started = time.monotonic()
    async with KafkaCluster(nodes, version=version) as cluster:
        print(cluster.bootstrap_servers, flush=True)
        print(f"{nodes} nodes of Kafka {version} up in {time.monotonic() - started:.1f} s; Ctrl-C")
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Run real Kafka brokers until Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=3)
    releases = f"{KAFKA_4} (default), {KAFKA_3}, {KAFKA_2}, ..."
    parser.add_argument("--version", default=KAFKA_4, help=releases)
    chosen = parser.parse_args()
    asyncio.run(_serve(chosen.nodes, chosen.version))


if __name__ == "__main__":
    main()

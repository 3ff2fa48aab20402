"""A standalone Spark cluster on this machine: a master and two workers, each in its own processes.

python -m tests.spark.integration.standalone      # runs until Ctrl-C, prints the master's URL
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def standalone(
    hosts: Sequence[str] = (HOST, HOST), cores: int = 2, folder: str | None = None
) -> Iterator[str]:
    """Start the cluster, yield the master's URL, and end all processes afterwards.

    Args:
        hosts: addresses of the workers on the loopback interface.
        folder: receives the logs: daemons.log of the master and the workers, app-* of the
            executors.
    """
    port = _free_port()
    folder = folder or tempfile.mkdtemp(prefix="aiokprod-standalone-")
    environment = dict(
        os.environ,
        SPARK_HOME=str(HOME),
        SPARK_DAEMON_MEMORY="256m",
        PYSPARK_PYTHON=sys.executable,
        SPARK_WORKER_DIR=folder,
    )
    processes = []
    log = (Path(folder) / "daemons.log").open("ab")

    def spawn(*arguments: str) -> None:
        processes.append(
            subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), *arguments], env=environment, cwd=folder,
                stdout=log, stderr=log, start_new_session=True,
            )
        )  # fmt: skip

    url = f"spark://{HOST}:{port}"
    try:
        spawn("org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port),
              "--webui-port", "0")  # fmt: skip
        give_up = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
                break
            assert time.monotonic() < give_up, (Path(folder) / "daemons.log").read_text()[-2000:]
            time.sleep(0.2)
        for host in hosts:
            spawn("org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", str(cores),
                  "--memory", "2g", "--webui-port", "0", url)  # fmt: skip
        yield url
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


if __name__ == "__main__":
    with standalone() as where:
        print(where, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(1e9)

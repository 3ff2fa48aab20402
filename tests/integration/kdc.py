"""A real Kerberos realm for tests: MIT's KDC in a temporary folder, on the loopback interface,
without root privileges. It requires Debian's krb5-kdc, krb5-admin-server and krb5-user."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiokprod.testing.kafka_node import free_ports
from aiokprod.testing.reaper import Reaper

REALM = "TEST.AIOKPROD"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def missing() -> str:
    """Return the reason why no realm can be started here, or an empty string."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"{', '.join(absent)} not found: install krb5-kdc, krb5-admin-server and krb5-user"
    try:
        import gssapi  # noqa: F401
    except ImportError:
        return "the package gssapi is not installed: pip install 'aiokprod[gssapi]'"
    return ""


class Realm:
    """A Kerberos KDC. With the variables in `environment`, this process and its children use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "krb5.conf"
        self.environment = {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder / 'ccache'}",
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self.config}",
        }
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper = Reaper()
        self._write()
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "canary-master-key")

    def _write(self) -> None:
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_realm = false\n"
            " dns_lookup_kdc = false\n rdns = false\n dns_canonicalize_hostname = false\n"
            " udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
        )
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self._port}\n"
            f" kdc_tcp_listen = 127.0.0.1:{self._port}\n"
            f"[realms]\n {REALM} = {{\n"
            f"  database_name = {self.folder / 'principal'}\n"
            f"  key_stash_file = {self.folder / 'stash'}\n"
            f"  acl_file = {self.folder / 'kadm5.acl'}\n"
            "  max_life = 10h\n  max_renewable_life = 7d\n }\n"
            f"[logging]\n kdc = FILE:{self.folder / 'kdc.log'}\n"
        )

    def start(self) -> None:
        """Start the KDC and wait until its port is open."""
        with (self.folder / "kdc.out").open("ab") as out:
            self._process = subprocess.Popen(
                [self._program("krb5kdc"), "-n", "-r", REALM],
                env=self._env(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._reaper.add_process(self._process.pid)
        give_up = time.monotonic() + 20.0
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self.folder / "kdc.out").read_text())
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the KDC and keep its database."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(20)
            self._reaper.forget_process(self._process.pid)
            self._process = None

    def close(self) -> None:
        """Stop the KDC and its reaper process."""
        self.stop()
        self._reaper.close()

    def principal(
        self, name: str, *, life: str = "10h", password: str | None = None
    ) -> Path | None:
        """Add a principal. Without a password, also create its keytab and return the path."""
        how = "-randkey" if password is None else f"-pw {password}"
        self._run("kadmin.local", "-r", REALM, "-q", f'addprinc {how} -maxlife "{life}" {name}')
        return None if password is not None else self.keytab(name)

    def keytab(self, name: str) -> Path:
        """Create a new keytab of a principal and return its path. Older keytabs become invalid."""
        path = self.folder / f"{name.replace('/', '-')}.keytab"
        path.unlink(missing_ok=True)
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {name}")
        return path

    def kinit(self, name: str, password: str) -> None:
        """Store the tickets of a principal in the credential cache."""
        self._run("kinit", name, text=f"{password}\n")

    def kdestroy(self) -> None:
        """Delete the credential cache."""
        (self.folder / "ccache").unlink(missing_ok=True)

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.environment, "PATH": _PATH}

    @staticmethod
    def _program(name: str) -> str:
        found = shutil.which(name, path=_PATH)
        assert found is not None, missing()
        return found

    def _run(self, name: str, *arguments: str, text: str | None = None) -> None:
        answer = subprocess.run(
            [self._program(name), *arguments],
            env=self._env(),
            input=text or "",
            capture_output=True,
            text=True,
            timeout=60,
        )
        told = answer.stdout + answer.stderr
        if answer.returncode != 0 or "while" in answer.stderr:
            raise RuntimeError(f"{name} failed: {told}")


@contextmanager
def realm(folder: Path) -> Iterator[Realm]:
    """Start a realm that this process and its children use, until the end of the block."""
    made = Realm(folder)
    before = {name: os.environ.get(name) for name in made.environment}
    os.environ.update(made.environment)
    try:
        made.start()
        yield made
    finally:
        made.close()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

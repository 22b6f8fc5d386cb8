"""A PostgreSQL cluster of the tests' own: made by initdb in a temporary folder, on loopback, and stopped with them.

Debian's package starts a cluster when it is installed; nothing here knows its folder, port or socket. What is fast is
the place (memory, where there is some), not the settings: `fsync`, `full_page_writes` and `synchronous_commit` are on.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.environment import memory
from tests.ports import free_port

DEBIAN: Final = Path("/usr/lib/postgresql")
USER: Final = "nobody"
"""Whose process the server is where the tests are root's: PostgreSQL refuses to be root."""
SIGNALS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
PATIENCE: Final = 60.0
"""Seconds that a server gets to start or to stop on a busy machine."""

_spawner = ThreadPoolExecutor(1, thread_name_prefix="PostgreSQL")
"""Who starts servers: they die with the thread that did, so it has to be one that lives as long as we do."""

SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "listen_addresses": "127.0.0.1",
    # A server that stops waits so long for a client that connected and says nothing: less than PATIENCE.
    "authentication_timeout": "20s",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %a ",
}


def programs() -> Path | None:
    """Return the folder of initdb and postgres: Debian's newest, else that on PATH; None where there is none."""
    versions = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class Cluster:
    """One server, its folder and its port. `password` is that of its superuser over TCP; the socket asks for none."""

    user = "owner"

    def __init__(self, folder: Path, bin_folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.password = secrets.token_hex(12)
        self.port = free_port()
        self._bin = bin_folder
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._init()

    # ---- addresses ----

    def dsn(self, database: str = "postgres", **parameters: str) -> str:
        """Return the URL of a database over TCP, with the password."""
        more = "".join(
            f"{'&' if number else '?'}{name}={value}"
            for number, (name, value) in enumerate(parameters.items())
        )
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{self.port}/{database}{more}"

    def database(self, like: str = "template1") -> str:
        """Make a new database, empty or a copy of one that nobody has open; return its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            # The pages of the template in the log of the server cost more than its files do in memory.
            how = "STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {like} {how}".encode())
        return self.dsn(name)

    # ---- living ----

    @property
    def pid(self) -> int:
        """The postmaster's."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start the server, and wait until it answers."""
        assert self._process is None, "it runs already"
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        place = ("-D", str(self.data), "-p", str(self.port), "-k", str(self.folder))
        command = [*_privileges(), str(self._bin / "postgres"), *place, *settings]
        self._process = _spawner.submit(self._spawn, command).result()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the server answers."""
        for _ in _turns(PATIENCE):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn(), connect_timeout=5).close()
                return
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()
        raise AssertionError(f"the server does not answer: {self.log.read_text()}")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server as `pg_ctl stop -m MODE` does, and wait for its end. Nothing where it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(SIGNALS[mode])
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def tell(self, statement: str) -> list[tuple[Any, ...]]:
        """Carry out a statement as the superuser, and return its rows."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    # ---- inside ----

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def _init(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
        secret = self.folder / "password"
        secret.write_text(_verifier(self.password))
        who = ("--auth-local=trust", "--auth-host=scram-sha-256", "-U", self.user, f"--pwfile={secret}")
        how = ("--no-sync", "--data-checksums", "-E", "UTF8", "--locale=C")
        command = [*_privileges(), str(self._bin / "initdb"), "-D", str(self.data), *who, *how]
        subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        secret.unlink()


class Standby(Cluster):
    """A streaming standby of a cluster that runs, copied from it by pg_basebackup."""

    def __init__(self, folder: Path, primary: Cluster) -> None:
        self._primary = primary
        super().__init__(folder, primary._bin, {})
        self.password = primary.password

    def promote(self) -> None:
        """Make it the primary, and wait until it is."""
        self.tell("SELECT pg_promote()")

    def receiver(self) -> int:
        """Return the id of the process that receives from the primary, as soon as there is one."""
        for _ in _turns(PATIENCE):
            if found := self.tell("SELECT pid FROM pg_stat_wal_receiver WHERE status = 'streaming'"):
                return int(found[0][0])
        raise AssertionError(f"the standby receives nothing: {self.log.read_text()}")

    def _init(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
        how = ("--checkpoint=fast", "--no-sync", "--write-recovery-conf", "-D", str(self.data))
        command = [*_privileges(), str(self._bin / "pg_basebackup"), *how, "-d", self._primary.dsn()]
        subprocess.run(command, cwd=self.folder, check=True)


@contextlib.contextmanager
def standby(primary: Cluster) -> Iterator[Standby]:
    """Run a standby of a cluster as long as the block; it replicates asynchronously until `synchronous`."""
    with tempfile.TemporaryDirectory(prefix="fsm-pg-", dir=memory()) as own:
        made = Standby(Path(own), primary)
        try:
            made.start()
            made.receiver()
            yield made
        finally:
            made.stop("immediate")


def synchronous(primary: Cluster) -> None:
    """Acknowledge commits of a cluster when a standby has them, too, and wait until one does."""
    primary.tell("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.tell("SELECT pg_reload_conf()")
    for _ in _turns(PATIENCE):
        if primary.tell("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
            return
    raise AssertionError("no standby is synchronous")


@contextlib.contextmanager
def cluster(folder: Path | None = None, **settings: str) -> Iterator[Cluster]:
    """Run a cluster as long as the block; its folder is made in `folder`, by default in memory. Needs `programs()`."""
    bin_folder = programs()
    assert bin_folder is not None
    parent = folder or memory()
    with tempfile.TemporaryDirectory(prefix="fsm-pg-", dir=parent) as own:
        made = Cluster(Path(own), bin_folder, settings)
        try:
            made.start()
            yield made
        finally:
            made.stop("immediate")


def _verifier(password: str) -> str:
    """Return a password as PostgreSQL stores it, with one iteration in place of 4,096: it is asked for often."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    parts = (base64.b64encode(part).decode() for part in (salt, stored, server))
    return "SCRAM-SHA-256$1:{}${}:{}".format(*parts)


def _privileges() -> list[str]:
    """Return what a command is prefixed with: no root, and no life after ours, as far as the system can do that."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        assert os.geteuid() != 0, (
            "PostgreSQL does not run as root, and there is no setpriv to be somebody else"
        )
        return []
    whose = [f"--reuid={USER}", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    return [setpriv, *whose, "--pdeathsig=QUIT", "--"]


def _turns(seconds: float) -> Iterator[None]:
    """Ask for a condition again and again, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.02)

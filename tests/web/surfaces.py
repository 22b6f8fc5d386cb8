"""The four HTTP surfaces as processes: console, web service, MCP server and pages of metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator import Runs, SqliteJournal
from tests.console.stored import ASKS, leave_asking
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
TOKEN = "token-" * 4
CANARY: Final = "omar_davis_3817"
"""In the prompt and the arguments of a run, in the name of a metric and in the name of an agent."""
AGENTS = f"""
import asyncio

from orchestrator import Agent
from orchestrator.testing import FunctionLLM


async def model(request):
    if "slow" in request.messages[-1].text:
        await asyncio.sleep(60)
    return "{CANARY}"


def {CANARY}(journal):
    return Agent(FunctionLLM(model), name="{CANARY}", journal=journal, observers=())
"""
METRICS = f"""
import signal, sys

from prometheus_client import Gauge
from orchestrator.telemetry import serve_metrics

Gauge("{CANARY}", "Secret.").set(1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with serve_metrics(port=int(sys.argv[1]), token="{TOKEN}"):
    signal.pause()
"""
COMMANDS: Final = {
    "console": (
        *("-m", "orchestrator", "console", "--journal", "runs.db", "--port", "{port}"),
        *("--operate", "--token-env", "SERVICE_TOKEN"),
    ),
    "service": ("-m", "orchestrator.examples.service", "--port", "{port}"),
    "mcp": (
        *("-m", "orchestrator", "mcp", "serve", "--agent", f"my_agents:{CANARY}", "--journal", "runs.db"),
        *("--http", "{port}", "--token-env", "SERVICE_TOKEN"),
    ),
    "metrics": ("metrics.py", "{port}"),
}


@dataclass(slots=True)
class Surface:
    """A process that serves HTTP, with a run that waits for a person in its journal."""

    name: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "my_agents.py").write_text(AGENTS)
        (self.folder / "metrics.py").write_text(METRICS)
        asyncio.run(self._prepare())
        command = [part.format(port=self.port) for part in COMMANDS[self.name]]
        path = os.pathsep.join(str(ROOT / part) for part in ("", "callbacks", "guards"))
        variables = {"PYTHONPATH": path, "ORCHESTRATOR_JOURNAL": "runs.db", "SERVICE_TOKEN": TOKEN}
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        ends = time.monotonic() + PATIENCE
        while not self._listens():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < ends, self.log()
            time.sleep(0.05)

    async def _prepare(self) -> None:
        async with SqliteJournal(self.folder / "runs.db") as journal:
            await leave_asking(journal, ASKS, note=CANARY, prompt=CANARY, name="desk")

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def log(self) -> str:
        """Return all that the process has printed."""
        return (self.folder / "log").read_text(errors="replace")

    def resident(self) -> int:
        """Return the bytes of its resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def questions(self) -> int:
        """Return how many questions of the run are open."""

        async def count() -> int:
            async with SqliteJournal(self.folder / "runs.db", only_reads=True) as journal:
                return len(await Runs(journal).pending(ASKS))

        return asyncio.run(count())

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection and send bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        connection.sendall(sent)
        return connection

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; return the exit code and what was printed."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE), self.log()


@contextlib.contextmanager
def surface(name: str, folder: Path) -> Iterator[Surface]:
    """Start a surface, which ends with the block."""
    started = Surface(name, folder)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait(PATIENCE)

"""The web service in processes of its own, under each server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator import Runs
from orchestrator.journal.address import address_of
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.journal import RunHead
from tests.examples.service_client import PATIENCE, TOKENS, Client
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.examples.service_app:app"
OWN = f"from orchestrator.examples.service.__main__ import main; main({APP!r})"
SERVERS: Mapping[str, list[str]] = {
    "main": ["-c", OWN, "--port", "{port}", "--workers", "{workers}"],
    "uvicorn": [
        *("-m", "uvicorn", APP, "--port", "{port}", "--workers", "{workers}"),
        *("--timeout-worker-healthcheck", "60"),
    ],
    "gunicorn": [
        *("-m", "gunicorn", "-k", "uvicorn_worker.UvicornWorker", "-b", "127.0.0.1:{port}"),
        *("-w", "{workers}", "--graceful-timeout", "120", APP),
    ],
}


class Service:
    """A server with its workers, and the journal and the effects of its runs."""

    def __init__(self, folder: Path, server: str, workers: int, journal: str, grace: float = 20.0) -> None:
        self._folder, self._journal = folder, journal
        self.port = free_port()
        names = {"port": self.port, "workers": workers}
        self._command = [sys.executable, *(part.format(**names) for part in SERVERS[server])]
        self._environment = {
            **os.environ,
            "ORCHESTRATOR_JOURNAL": journal,
            "SERVICE_TOKEN": TOKENS,
            "SERVICE_FOLDER": str(folder),
            "SERVICE_GRACE": str(grace),
        }
        self.client = Client(self.port)
        self.process: subprocess.Popen[bytes]
        try:
            self.begin()
        except BaseException:
            self.kill()
            raise

    def begin(self) -> None:
        """Start the server, as its supervisor does."""
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.client.until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        with self.client.http() as http:
            return http.get("/readyz").is_success

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill every process of the server, and wait for the ends of those that this one started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    # ---- runs ----

    def go(self, *steps: str) -> None:
        for one in steps:
            (self._folder / f"go-{one}").touch()

    def lines(self) -> list[tuple[str, str, int]]:
        """Prompt, step and process of each effect, in order."""
        file = self._folder / "effects"
        found = [line.split(":") for line in file.read_text().splitlines()] if file.exists() else []
        return [(prompt, step, int(pid)) for prompt, step, pid in found]

    def effects(self, only: str = "") -> dict[str, int]:
        """How often each tool call took effect, of all runs or only of the one with this prompt."""
        calls = [(prompt, step) for prompt, step, _ in self.lines() if step != "asked"]
        return Counter(f"{prompt}:{step}" for prompt, step in calls if only in ("", prompt))

    def process_of(self, effect: str) -> int:
        """The process of an effect, when it has happened."""
        self.client.until(lambda: effect in [f"{prompt}:{step}" for prompt, step, _ in self.lines()])
        return next(pid for prompt, step, pid in self.lines() if f"{prompt}:{step}" == effect)

    def head(self, run_id: str) -> RunHead:
        async def found() -> RunHead:
            async with journal_at(address_of(self._journal)) as journal:
                return await journal.head(run_id)

        return asyncio.run(found())

    def ids(self, run_id: str) -> list[str | None]:
        """The ids of all events of a run, by its journal."""

        async def found() -> list[str | None]:
            async with journal_at(address_of(self._journal)) as journal:
                return [event.id async for event in Runs(journal).events(run_id)]

        return asyncio.run(found())


Serve = Callable[..., Service]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server. None of its processes outlives the test."""
    begun: list[Service] = []

    def begin(server: str, workers: int, journal: str = "", grace: float = 20.0) -> Service:
        begun.append(Service(tmp_path, server, workers, journal or str(tmp_path / "runs.db"), grace))
        return begun[-1]

    yield begin
    for service in begun:
        service.kill()

"""`orchestrator metrics serve|batch`: a journal's figures over HTTP, and the result of a batch job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.look import JournalWatch
from orchestrator.cli.metrics_group import MetricsServeOptions
from orchestrator.cli.output import complain, say, shown
from orchestrator.cli.runs.store import existing
from orchestrator.cli.shipped import SHIPPED
from orchestrator.cli.stop import on_signal
from orchestrator.errors import ConfigError, RunError
from orchestrator.journal.address import Address
from orchestrator.journal.opening import journal_at
from orchestrator.telemetry.exposition.batch import Batch
from orchestrator.telemetry.exposition.server import serve_metrics
from orchestrator.telemetry.exposition.stored import JournalCollector, registry_of

SHORTEST, LONGEST = 1, 3600
"""Least and most seconds between two reads of a journal."""

_BEAT = 0.5
_OUT_OF_DATE = 3
"""Intervals after which figures are too old for the state ready."""
_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128
"""Exit codes of shells: command not found, not executable, ended by a signal."""


def serve_journal(options: MetricsServeOptions) -> int:
    """Serve the figures of a journal until a signal. Raises ConfigError."""
    if not SHORTEST <= options.every <= LONGEST:
        raise ConfigError(f"every is {options.every:g}; it must be from {SHORTEST} to {LONGEST} seconds")
    token = _token(options.token_env)
    address = existing(options.journal)
    asyncio.run(_serve(options, address, token))
    return Exit.COMPLETED


def _token(name: str | None) -> str | None:
    if name is None:
        return None
    token = os.environ.get(name, "").strip()
    if not token:
        raise ConfigError(f"the environment variable {name} is empty; put the bearer token into it")
    return token


class _Clockwork:
    """Times of the loop's last heartbeat and of the journal's last successful read (monotonic seconds)."""

    def __init__(self, every: float) -> None:
        self._every = every
        self.beat = time.monotonic()
        self.read: float | None = None

    def age(self) -> float:
        return time.monotonic() - self.beat

    def is_current(self) -> bool:
        return self.read is not None and time.monotonic() - self.read < _OUT_OF_DATE * self._every

    def due(self) -> bool:
        return self.read is None or time.monotonic() - self.read >= self._every


async def _serve(options: MetricsServeOptions, address: Address, token: str | None) -> None:
    counted = journal_at(address, only_reads=True, create=False)
    collector = JournalCollector(counted, _limits(), alone=options.alone)
    clockwork, watch = _Clockwork(options.every), JournalWatch(address)
    stopped = asyncio.Event()
    registry = registry_of(collector)
    server = serve_metrics(
        registry,
        options.host,
        options.port,
        token,
        heartbeat=clockwork.age,
        ready={"journal": clockwork.is_current},
    )
    try:
        with server, on_signal(stopped.set):
            say(f"serving {server.url} from {shown(str(address))}")
            while not stopped.is_set():
                clockwork.beat = time.monotonic()
                if clockwork.due():
                    await _look(watch, collector, clockwork)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), _BEAT)
    finally:
        await watch.close()


async def _look(watch: JournalWatch, collector: JournalCollector, clockwork: _Clockwork) -> None:
    try:
        collector.show(await watch.look())
    except (RunError, OSError) as error:
        collector.failed()
        complain(shown(str(error), 500))
    else:
        clockwork.read = time.monotonic()


def _limits() -> dict[tuple[str, str], float]:
    """Return (machine, state) -> maximum seconds in it, for the graphs that come with the library."""
    return {
        (name, state.value): limit[0]
        for name, graph in SHIPPED.items()
        for state in graph.states
        if (limit := graph.dwell_of(state)) is not None
    }


# ---- batch ----


def run_batch(name: str, command: list[str], *, textfile: Path | None, gateway: str | None) -> int:
    """Run a command, publish its result, and return its exit code. Raises ConfigError."""
    if textfile is None and gateway is None:
        raise ConfigError("there is no place to publish to: give --textfile, --gateway, or both")
    with Batch(name, textfile=textfile, gateway=gateway) as batch:
        code = _run(command)
        batch.failed = code != 0
    for problem in batch.problems:
        complain(shown(problem, 500))
    return code


def _run(command: list[str]) -> int:
    try:
        code = subprocess.call(command)  # noqa: S603 - the purpose of this command is to run the user's command
    except FileNotFoundError:
        complain(f"no program {shown(command[0], 200)}")
        return _NOT_FOUND
    except OSError as error:
        complain(f"{shown(command[0], 200)} cannot be run: {error.strerror}")
        return _NOT_EXECUTABLE
    return code if code >= 0 else _SIGNALLED - code

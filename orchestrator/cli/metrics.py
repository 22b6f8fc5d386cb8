"""`orchestrator metrics serve|batch`: a journal's figures over HTTP, and the result of a batch job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import complain, say, shown
from orchestrator.cli.runs.store import existing
from orchestrator.cli.shipped import SHIPPED
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError, Corrupt, RunError
from orchestrator.journal.address import Address
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import ENGINE, ORPHANED, PARKED, RUNNING, RunHead
from orchestrator.kernel.outcome import REASONS
from orchestrator.telemetry.exposition.server import serve_metrics
from orchestrator.telemetry.exposition.stored import (
    Batch,
    JournalCollector,
    JournalSnapshot,
    StoredRunStatus,
    registry_of,
)
from orchestrator.telemetry.instrument import CAPS, NO_AGENT, OTHER, UNKNOWN, is_label

SHORTEST, LONGEST = 1, 3600
"""Least and most seconds between two reads of a journal."""

_BEAT = 0.5
_OUT_OF_DATE = 3
"""Intervals after which figures are too old for the state ready."""
_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128
"""Exit codes of shells: command not found, not executable, ended by a signal."""

_BATCH = """Run a command and publish when it last succeeded, and its time.

The exit code is the command's.

\b
orchestrator metrics batch nightly --textfile /var/lib/node_exporter/nightly.prom \\
    -- orchestrator run "Summarise the open incidents."
"""

group = typer.Typer(help="Metrics of journals and batch jobs.", rich_markup_mode=None)


@group.callback()
def metrics_group() -> None:
    """Metrics of runs whose processes cannot be scraped: those of a journal, and of a batch job."""


@dataclass(frozen=True, kw_only=True)
class MetricsServeOptions:
    """The command line of `metrics serve`."""

    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="The address to listen at. The default is this machine only."),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="N", help="The port; 0 picks a free one.")] = 9464
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Environment variable with the bearer token that a scraper must show."
        ),
    ] = None
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to read the journal.")] = 15.0
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="Also serve the metrics of processes, for runs of processes that are not scraped.",
        ),
    ] = False
    journal: given.Journal = None


@group.command()
@spread
def serve(options: MetricsServeOptions) -> int:
    """Serve the metrics of a journal at /metrics, /healthz, /readyz.

    The metrics are runs that are running, orphaned (their owner died), parked and ended, since when, the size of the
    journal, and the figures of this process. Nothing is written to the journal. SIGINT and SIGTERM stop the command.

    A process with the journal serves the same metrics of it, so this command is needed only while there may be no
    such process: it keeps parked and orphaned runs visible. It can run beside them, because the rules count each run
    once. Runs that are processes of their own, such as `orchestrator run`, are not scraped: with --alone the command
    also serves what their processes would.
    """
    if not SHORTEST <= options.every <= LONGEST:
        raise ConfigError(f"every is {options.every:g}; it must be from {SHORTEST} to {LONGEST} seconds")
    token = None
    if options.token_env is not None and not (token := os.environ.get(options.token_env, "").strip()):
        raise ConfigError(
            f"the environment variable {options.token_env} is empty; put the bearer token into it"
        )
    asyncio.run(_serve(options, existing(options.journal), token))
    return Exit.COMPLETED


async def _serve(options: MetricsServeOptions, address: Address, token: str | None) -> None:
    counted = journal_at(address, only_reads=True, create=False)
    limits = {
        (name, state.value): limit[0]
        for name, graph in SHIPPED.items()
        for state in graph.states
        if (limit := graph.dwell_of(state)) is not None
    }
    """(machine, state) -> maximum seconds in it, for the graphs that come with the library."""
    collector = JournalCollector(counted, limits, alone=options.alone)
    watch = JournalWatch(address)
    beat = time.monotonic()
    """When the loop last ran."""
    read: float | None = None
    """When the journal was last read."""
    stopped = asyncio.Event()
    registry = registry_of(collector)
    server = serve_metrics(
        registry,
        options.host,
        options.port,
        token,
        heartbeat=lambda: time.monotonic() - beat,
        ready={
            "journal": lambda: read is not None and time.monotonic() - read < _OUT_OF_DATE * options.every
        },
    )
    try:
        with server, on_signal(stopped.set):
            say(f"serving {server.url} from {shown(str(address))}")
            while not stopped.is_set():
                beat = time.monotonic()
                if read is None or time.monotonic() - read >= options.every:
                    try:
                        collector.show(await watch.look())
                    except (RunError, OSError) as error:
                        collector.failed()
                        complain(shown(str(error), 500))
                    else:
                        read = time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), _BEAT)
    finally:
        await watch.close()


@group.command(context_settings={"ignore_unknown_options": True}, help=_BATCH)
def batch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the job; its series carry it as the label `batch`.")
    ],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="What to run, after --.")],
    *,
    textfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write here, in the folder of node_exporter's textfile collector; *.prom."
        ),
    ] = None,
    gateway: Annotated[str | None, typer.Option(metavar="URL", help="Push to this Pushgateway.")] = None,
) -> None:
    """Run a command and publish how it ended."""
    if textfile is None and gateway is None:
        raise ConfigError("there is no place to publish to: give --textfile, --gateway, or both")
    with Batch(name, textfile=textfile, gateway=gateway) as job:
        try:
            code = subprocess.call(command)  # noqa: S603 - the purpose of this command is to run the user's command
        except FileNotFoundError:
            complain(f"no program {shown(command[0], 200)}")
            code = _NOT_FOUND
        except OSError as error:
            complain(f"{shown(command[0], 200)} cannot be run: {error.strerror}")
            code = _NOT_EXECUTABLE
        code = code if code >= 0 else _SIGNALLED - code
        job.failed = code != 0
    for problem in job.problems:
        complain(shown(problem, 500))
    raise typer.Exit(code)


# ---- the figures of a journal ----

MOST_READ = 500
"""Most ended runs whose records are read in one cycle; the others follow in the next cycles."""
_SHARE = 20
"""Seconds until a run is read again, for each second that reading it took: this limits the load."""

_ONLY: Mapping[str, str] = {
    reason: outcomes[0]
    for reason in set().union(*REASONS.values())
    if len(outcomes := [outcome.value for outcome, reasons in REASONS.items() if reason in reasons]) == 1
}
"""Reason -> its outcome, for reasons with only one outcome: these runs are not read."""

End = tuple[str, str]
_Ended: TypeAlias = tuple[str, str, str, str]
"""(machine, agent, outcome, reason)"""


@dataclass(slots=True)
class _Seen:
    """A run as of the last read of its records. `seq` is the number of the last record."""

    seq: int
    run_status: StoredRunStatus | None = None
    end: End | None = None
    """(outcome, reason)"""
    again: float = 0.0
    """Do not read it again before this time (of the monotonic clock)."""
    counted: bool = False


@dataclass(slots=True)
class JournalWatch:
    """The figures of one journal between two reads."""

    address: Address
    now: Callable[[], float] = time.time
    _began: float = field(init=False)
    _journal: StoredJournal | None = None
    _identity: tuple[int, int] | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _machines: set[str] = field(default_factory=set)
    _agents: set[str] = field(default_factory=set)
    _completed: Counter[_Ended] = field(default_factory=Counter)
    _budget: int = 0

    def __post_init__(self) -> None:
        self._began = self.now()

    async def look(self) -> JournalSnapshot:
        """Read the journal. Raises JournalError or OSError; the next read opens it again."""
        began, self._budget = time.perf_counter(), MOST_READ
        try:
            identity = _identity(self.address)
            if self._journal is None or identity != self._identity:  # another file now: a restored backup
                await self.close()
                self._journal, self._identity = journal_at(self.address, create=False), identity
                await self._journal.open()
            journal = self._journal
            run_status: list[StoredRunStatus] = []
            ended: Counter[_Ended] = Counter()
            seen: dict[str, _Seen] = {}
            unreadable = 0
            try:
                async for head in journal.runs():
                    if head.graph == ENGINE:
                        continue
                    one = seen[head.run_id] = await self._read(journal, head)
                    if one.run_status is not None:
                        run_status.append(one.run_status)
                    elif one.end is not None:
                        key = (self._machine(head.graph), self._agent(head.agent), *one.end)
                        ended[key] += 1
                        if not one.counted and head.updated_at >= self._began and one.end[0] != UNKNOWN:
                            one.counted = True
                            self._completed[key] += 1
                    else:
                        unreadable += 1
            except Corrupt:  # of a run
                unreadable += 1
            self._seen = seen
            size = await journal.size()
        except (RunError, OSError):
            await self.close()
            raise
        seconds = time.perf_counter() - began
        return JournalSnapshot(
            self.now(), seconds, size, tuple(run_status), ended, self._completed.copy(), unreadable
        )

    async def close(self) -> None:
        """Close the file."""
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    async def _read(self, journal: StoredJournal, head: RunHead) -> _Seen:
        """Return the state of a run, from earlier reads as far as they are valid."""
        before = self._seen.get(head.run_id)
        if head.status == "ended":
            if before is not None and before.seq == head.seq and before.end not in {None, (UNKNOWN, UNKNOWN)}:
                return before
            return _Seen(head.seq, end=await self._end_of(journal, head))
        if before is not None and before.run_status is not None:
            if before.seq == head.seq:
                before.run_status = self._status_of(
                    head, before.run_status.state, before.run_status.entered_at
                )
                return before
            if time.monotonic() < before.again:
                return before
        began = time.monotonic()
        try:
            run = StoredRun.of(head.run_id, await journal.load(head.run_id))
        except RunError:
            return _Seen(head.seq)
        entered = run.step.get("at")
        entered_at = float(entered) if isinstance(entered, int | float) else head.created_at
        again = time.monotonic() + _SHARE * (time.monotonic() - began)
        return _Seen(head.seq, self._status_of(head, run.state, entered_at), again=again)

    def _status_of(self, head: RunHead, state: str, entered_at: float) -> StoredRunStatus:
        status = PARKED if head.status == "parked" else ORPHANED if head.owner is None else RUNNING
        if not state:
            state = SHIPPED[head.graph].initial.value if head.graph in SHIPPED else UNKNOWN
        return StoredRunStatus(
            machine=self._machine(head.graph),
            status=status,
            state=state if is_label(state) else OTHER,
            entered_at=entered_at,
            started_at=head.created_at,
            agent=self._agent(head.agent),
        )

    async def _end_of(self, journal: StoredJournal, head: RunHead) -> End | None:
        if (only := _ONLY.get(head.reason)) is not None:
            return only, head.reason
        if self._budget <= 0:
            return UNKNOWN, UNKNOWN
        self._budget -= 1
        try:
            body = (await journal.load(head.run_id, head.seq))[-1].body
        except RunError:
            return None
        outcome, reason = str(body.get("outcome", "")), str(body.get("reason", ""))
        known = {str(one): reasons for one, reasons in REASONS.items()}
        if outcome not in known:
            return OTHER, OTHER
        return outcome, reason if reason in known[outcome] else OTHER

    def _machine(self, name: str) -> str:
        return _label(name, self._machines, CAPS["machine"])

    def _agent(self, name: str) -> str:
        return _label(name, self._agents, CAPS["agent"]) if name else NO_AGENT


def _label(name: str, known: set[str], most: int) -> str:
    """Return a name as a label value: one of the first `most` names, or `_other`."""
    if name not in known:
        if len(known) >= most or not is_label(name):
            return OTHER
        known.add(name)
    return name


def _identity(address: Address) -> tuple[int, int] | None:
    """Return the identity of a file, which differs if the file is replaced; that of a server is constant."""
    if not isinstance(address, Path):
        return None
    status = address.stat()
    return status.st_dev, status.st_ino

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
from orchestrator.cli.runs.phrase import seconds_in
from orchestrator.cli.runs.store import existing
from orchestrator.cli.shipped import SHIPPED
from orchestrator.cli.spread import spread
from orchestrator.engines.engine_directory import engines, waits_for_agent
from orchestrator.errors import ConfigError, Corrupt, RunError
from orchestrator.journal.address import Address
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import ENGINE, ORPHANED, PARKED, RUNNING, RunHead
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.telemetry.exposition.server import serve_metrics
from orchestrator.telemetry.exposition.stored import (
    AgentSuccess,
    Batch,
    ExpectedSuccess,
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
    success_within: Annotated[
        tuple[str, ...],
        typer.Option(
            "--success-within",
            metavar="AGENT=TIME",
            help="Alert if the agent has not succeeded for this time, such as nightly=26h; repeatable.",
        ),
    ] = ()
    attempts: Annotated[
        tuple[str, ...],
        typer.Option(
            "--attempts",
            metavar="AGENT=N",
            help="Alert if the last N runs of the agent did not succeed, `*=N` for all agents; repeatable.",
        ),
    ] = ()
    agents: Annotated[
        int,
        typer.Option(metavar="N", help="How many agents have series of their own; the others are _other."),
    ] = CAPS["agent"]
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

    For each agent it serves the time of its last success (a run that completed with an answer) and the runs that ended
    since then. --success-within and --attempts set when AgentNotSucceeding fires, also for an agent that runs once a
    night.
    """
    if not SHORTEST <= options.every <= LONGEST:
        raise ConfigError(f"every is {options.every:g}; it must be from {SHORTEST} to {LONGEST} seconds")
    if options.agents < 1:
        raise ConfigError(f"agents is {options.agents}; it must be 1 or more")
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
    collector = JournalCollector(
        counted, limits, alone=options.alone, expected=_expected(options), agents=options.agents
    )
    watch = JournalWatch(address, agents=options.agents)
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


def _expected(options: MetricsServeOptions) -> dict[str, ExpectedSuccess]:
    """Return agent -> what is expected of it. Raises ConfigError."""
    found: dict[str, ExpectedSuccess] = {}
    for name, text in map(_named, options.success_within):
        found[name] = found.get(name, ExpectedSuccess())._replace(seconds=seconds_in(text))
    for name, text in map(_named, options.attempts):
        if not text.isdecimal() or not int(text):
            raise ConfigError(f"--attempts {name}={text}: give a number of runs, 1 or more")
        found[name] = found.get(name, ExpectedSuccess())._replace(attempts=int(text))
    return found


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not is_label(name):
        raise ConfigError(f"{shown(text, 200)!r} has another form than AGENT=VALUE, such as nightly=26h")
    return name, value


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


class SuccessCount:
    """The last success of each agent, and the runs that ended since then without one. Agents are not capped.

    A success is a run that completed with an answer. Runs that people stopped are no attempts.
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._others: dict[str, list[float]] = {}

    def add(self, head: RunHead, end: End | None) -> None:
        """Add a run; `end` is (outcome, reason) of one that has ended."""
        agent = head.agent if is_label(head.agent) else NO_AGENT if not head.agent else OTHER
        self._began[agent] = min(head.created_at, self._began.get(agent, head.created_at))
        if end is None or end[0] in _NO_ATTEMPTS:
            return
        if end[0] == Outcome.COMPLETED and end[1] != "empty_answer":
            self._last[agent] = max(head.updated_at, self._last.get(agent, head.updated_at))
        else:
            self._others.setdefault(agent, []).append(head.updated_at)

    def found(self) -> dict[str, AgentSuccess]:
        """Return the figures of each agent."""
        return {
            agent: AgentSuccess(
                last := self._last.get(agent, began),
                sum(at > last or agent not in self._last for at in self._others.get(agent, ())),
            )
            for agent, began in self._began.items()
        }


_NO_ATTEMPTS = frozenset((Outcome.CANCELLED.value, Outcome.REJECTED.value, UNKNOWN))
"""Outcomes of runs that people stopped, and of those that were not read yet."""


@dataclass(slots=True)
class JournalWatch:
    """The figures of one journal between two reads."""

    address: Address
    now: Callable[[], float] = time.time
    agents: int = CAPS["agent"]
    """Maximum agents in the label `agent`, but for the last successes, which have all."""
    _began: float = field(init=False)
    _journal: StoredJournal | None = None
    _identity: tuple[int, int] | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _machines: set[str] = field(default_factory=set)
    _agents: set[str] = field(default_factory=set)
    _completed: Counter[_Ended] = field(default_factory=Counter)
    _budget: int = 0
    _last_waiting: tuple[object, frozenset[str]] = (None, frozenset())
    """(position of the inbox and live engines, runs that wait for their agent) of the last read."""

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
            successes = SuccessCount()
            parked: list[RunHead] = []
            unreadable = 0
            try:
                async for head in journal.runs():
                    if head.graph == ENGINE:
                        continue
                    one = seen[head.run_id] = await self._read(journal, head)
                    successes.add(head, one.end)
                    if head.status == PARKED and head.waiting and head.owner is None:
                        parked.append(head)
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
            waiting = await self._waiting_for_agents(journal, parked)
            size = await journal.size()
        except (RunError, OSError):
            await self.close()
            raise
        seconds = time.perf_counter() - began
        return JournalSnapshot(
            self.now(),
            seconds,
            size,
            tuple(run_status),
            ended,
            self._completed.copy(),
            unreadable,
            successes=successes.found(),
            waiting_for_agent=Counter(
                (self._machine(head.graph), self._agent(head.agent))
                for head in parked
                if head.run_id in waiting
            ),
        )

    async def close(self) -> None:
        """Close the file."""
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    async def _waiting_for_agents(self, journal: StoredJournal, parked: list[RunHead]) -> frozenset[str]:
        """Return the runs whose answer no live engine reads; from the last read if nothing has changed since then."""
        living = [one for one in await engines(journal) if one.alive]
        position, _ = await journal.news(-1)
        now = (
            position,
            frozenset(one.run_id for one in living),
            frozenset((one.run_id, one.seq) for one in parked),
        )
        if self._last_waiting[0] != now:
            found = [one.run_id for one in parked if await waits_for_agent(journal, one, living)]
            self._last_waiting = now, frozenset(found)
        return self._last_waiting[1]

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
        return _label(name, self._agents, self.agents) if name else NO_AGENT


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

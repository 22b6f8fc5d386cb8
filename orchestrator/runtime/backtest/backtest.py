"""Backtest a policy on the runs of a journal: the entry points of the library.

Each run is evaluated in a thread, so that a server stays responsive during a backtest, and a cancelled backtest ends
after the run that is being evaluated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TypeAlias, Unpack

from orchestrator.errors import ConfigError, Corrupt
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.team.model import TEAM_GRAPH
from orchestrator.runtime.backtest.comparison import (
    Decision,
    RunComparison,
    Unknowable,
    Unproved,
    compare,
    prove,
)
from orchestrator.runtime.backtest.policy import Policy
from orchestrator.runtime.backtest.report import Report
from orchestrator.runtime.backtest.trace import RunTrace, trace_of
from orchestrator.runtime.runs.listing import RunFilter
from orchestrator.runtime.runs.runs import Runs

Traces = Runs | AsyncIterable[RunTrace] | Iterable[RunTrace]
TraceReader: TypeAlias = Callable[[], RunTrace]
"""Reads the records of a run that were loaded, or returns a trace of an exported run."""
PAGE = 200
"""Heads of runs that are read at once."""


async def backtest(
    runs: Traces,
    policy: Policy,
    *,
    since: float | None = None,
    limit: int | None = None,
    seconds: float | None = None,
    each: Callable[[RunComparison], None] | None = None,
    **conditions: Unpack[RunFilter],
) -> Report:
    """Return the effect that a policy would have had on recorded runs.

    No model and no tool is called. One run at a time is in memory.

    Args:
        runs: `Runs(journal)`, or traces of exported runs.
        policy: Limits that replace those of each run, and guards of the host.
        since: Only runs that started at this time (epoch seconds) or later; None for all.
        limit: Most runs, the newest first; None for all.
        seconds: No further run is read after this time; None for no bound. `Report.incomplete` names a bound that was
            reached.
        each: Is called with the comparison of each run.
        conditions: See `RunFilter`. Runs of `llm_loop` are evaluated, and those of `team` if the policy has
            `max_handoffs` or `machine` names them.

    Raises:
        ConfigError: A condition is invalid, or a guard of the policy raises or is not a pure function.
        StoreDown: The store is unavailable.

    Example:
        report = await backtest(Runs(journal), Policy({"max_iterations": 30}), agent="support")
        print(report.benefit, report.harm)
    """
    [report] = await sweep(
        runs, {"": policy}, since=since, limit=limit, seconds=seconds, each=each, **conditions
    )
    return report


async def sweep(
    runs: Traces,
    policies: Mapping[str, Policy],
    *,
    since: float | None = None,
    limit: int | None = None,
    seconds: float | None = None,
    each: Callable[[RunComparison], None] | None = None,
    **conditions: Unpack[RunFilter],
) -> list[Report]:
    """Return a report for each of several policies, in one pass over the runs.

    Args:
        runs: As for `backtest`.
        policies: Label -> policy.
        since: As for `backtest`.
        limit: As for `backtest`.
        seconds: As for `backtest`.
        each: Is called with the comparison of each run under each policy.
        conditions: As for `backtest`.

    Raises:
        ConfigError: As for `backtest`.
        StoreDown: As for `backtest`.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be 1 or more, or None for all")
    reports = [Report(label) for label in policies]
    bound = _Bound(limit, seconds)
    machines = _machines(policies.values(), conditions.get("machine"))
    traces = _recorded(runs, reports, since, conditions, machines) if isinstance(runs, Runs) else _each(runs)
    async with aclosing(traces):
        async for read in traces:
            if reached := bound.reached():
                for report in reports:
                    report.incomplete = reached
                break
            done = await asyncio.to_thread(_evaluated, read, tuple(policies.values()))
            for report, one in zip(reports, done, strict=True):
                report.add(one)
                if each is not None:
                    each(one)
    for policy in policies.values():
        policy.check_guards()
    return reports


class _Bound:
    """Counts the runs of a backtest, up to its bounds."""

    def __init__(self, limit: int | None, seconds: float | None) -> None:
        self._limit = limit
        self._seconds = seconds
        self._start = time.monotonic()
        self._read = 0

    def reached(self) -> str:
        """Count one more run; return a sentence if it is beyond a bound, else ""."""
        if self._read == self._limit:
            return f"the bound of {self._limit:,} runs was reached, so older runs were not read"
        if self._seconds is not None and time.monotonic() - self._start >= self._seconds:
            return (
                f"the bound of {self._seconds:g} s was reached after {self._read:,} runs, "
                "so older runs were not read"
            )
        self._read += 1
        return ""


def _evaluated(read: TraceReader, policies: Iterable[Policy]) -> list[RunComparison]:
    """Return the comparison of one run under each policy."""
    trace = read()
    recorded = _proved(trace)
    return [_compared(trace, policy, recorded) for policy in policies]


def _proved(trace: RunTrace) -> list[Decision] | str:
    """Return the recorded decisions, or the reason why the run is left out."""
    if trace.problem:
        return trace.problem
    try:
        return prove(trace)
    except Unproved as error:
        return f"its recorded decisions do not follow from its inputs: {error}"
    except Unknowable as error:
        return str(error)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return f"its records have another form ({type(error).__name__})"


def _compared(trace: RunTrace, policy: Policy, recorded: list[Decision] | str) -> RunComparison:
    if isinstance(recorded, str):
        return RunComparison(
            trace.run_id, trace.agent, trace.outcome, trace.reason, "none", left_out=recorded
        )
    return compare(trace, policy, recorded)


async def _each(traces: AsyncIterable[RunTrace] | Iterable[RunTrace]) -> AsyncGenerator[TraceReader, None]:
    if isinstance(traces, AsyncIterable):
        async for trace in traces:
            yield partial(_itself, trace)
    else:
        for trace in traces:
            yield partial(_itself, trace)


def _itself(trace: RunTrace) -> RunTrace:
    return trace


def _machines(policies: Iterable[Policy], given: str | None) -> tuple[str, ...]:
    """Return the machines whose runs are evaluated: a limit of handoffs decides in the run of the team alone."""
    if given not in (None, LLM_LOOP.name, TEAM_GRAPH):
        raise ConfigError(
            f"a backtest evaluates runs of {LLM_LOOP.name}, not of {given!r}; of {TEAM_GRAPH} it evaluates the handoffs"
        )
    if given is not None:
        return (given,)
    has_handoffs = any("max_handoffs" in policy.limits for policy in policies)
    return (LLM_LOOP.name, TEAM_GRAPH) if has_handoffs else (LLM_LOOP.name,)


async def _recorded(
    runs: Runs, reports: list[Report], since: float | None, conditions: RunFilter, machines: Iterable[str]
) -> AsyncGenerator[TraceReader, None]:
    """Yield a reader of each run that meets the conditions, the newest of each machine first.

    Damage goes to the reports.
    """
    for machine in machines:
        query: RunFilter = {**conditions, "machine": machine}
        after: str | None = None
        more = True
        while more:
            page = await runs.page(limit=PAGE, after=after, **query)
            more = page.more
            for report in reports:
                report.damage = report.damage or page.damage
            for head in page.runs:
                if since is not None and head.created_at < since:
                    more = False
                    break
                yield await _reader(runs.journal, head)
            after = page.runs[-1].run_id if page.runs else None


async def read_trace(journal: Journal, head: RunHead) -> RunTrace:
    """Return the trace of a run. A run that cannot be read has a `problem`. Raises StoreDown."""
    return (await _reader(journal, head))()


async def _reader(journal: Journal, head: RunHead) -> TraceReader:
    try:
        records = await journal.load(head.run_id)
    except Corrupt as error:
        damaged = RunTrace(head.run_id, head.graph, head.agent, problem=f"it is damaged: {error}")
        return partial(_itself, damaged)
    return partial(trace_of, head.run_id, records)

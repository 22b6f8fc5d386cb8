"""Backtest a policy on the runs of a journal: the entry points of the library."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Unpack

from orchestrator.errors import ConfigError, Corrupt
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.backtest.comparison import RunComparison, Unproved, compare, prove
from orchestrator.runtime.backtest.evaluator import Decision, Unknowable
from orchestrator.runtime.backtest.policy import Policy
from orchestrator.runtime.backtest.report import Report
from orchestrator.runtime.backtest.trace import RunTrace
from orchestrator.runtime.backtest.trace_reader import trace_of
from orchestrator.runtime.runs.listing import RunFilter
from orchestrator.runtime.runs.runs import Runs

Traces = Runs | AsyncIterable[RunTrace] | Iterable[RunTrace]
PAGE = 200
"""Heads of runs that are read at once."""


async def backtest(
    runs: Traces,
    policy: Policy,
    *,
    since: float | None = None,
    each: Callable[[RunComparison], None] | None = None,
    **conditions: Unpack[RunFilter],
) -> Report:
    """Return the effect that a policy would have had on recorded runs.

    No model and no tool is called. One run at a time is in memory.

    Args:
        runs: `Runs(journal)`, or traces of exported runs.
        policy: Limits that replace those of each run, and guards of the host.
        since: Only runs that started at this time (epoch seconds) or later; None for all.
        each: Is called with the comparison of each run.
        conditions: See `RunFilter`. Only runs of `llm_loop` are evaluated.

    Raises:
        ConfigError: A condition is invalid, or a guard of the policy raises or is not a pure function.
        StoreDown: The store is unavailable.

    Example:
        report = await backtest(Runs(journal), Policy({"max_iterations": 30}), agent="support")
        print(report.benefit, report.harm)
    """
    [report] = await sweep(runs, {"": policy}, since=since, each=each, **conditions)
    return report


async def sweep(
    runs: Traces,
    policies: Mapping[str, Policy],
    *,
    since: float | None = None,
    each: Callable[[RunComparison], None] | None = None,
    **conditions: Unpack[RunFilter],
) -> list[Report]:
    """Return a report for each of several policies, in one pass over the runs.

    Args:
        runs: As for `backtest`.
        policies: Label -> policy.
        since: As for `backtest`.
        each: Is called with the comparison of each run under each policy.
        conditions: As for `backtest`.

    Raises:
        ConfigError: As for `backtest`.
        StoreDown: As for `backtest`.
    """
    reports = [Report(label) for label in policies]
    traces = _recorded(runs, reports, since, conditions) if isinstance(runs, Runs) else _each(runs)
    async for trace in traces:
        recorded = _proved(trace)
        for report, policy in zip(reports, policies.values(), strict=True):
            done = _compared(trace, policy, recorded)
            report.add(done)
            if each is not None:
                each(done)
    for policy in policies.values():
        policy.check_guards()
    return reports


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


async def _each(traces: AsyncIterable[RunTrace] | Iterable[RunTrace]) -> AsyncIterator[RunTrace]:
    if isinstance(traces, AsyncIterable):
        async for trace in traces:
            yield trace
    else:
        for trace in traces:
            yield trace


async def _recorded(
    runs: Runs, reports: list[Report], since: float | None, conditions: RunFilter
) -> AsyncIterator[RunTrace]:
    """Yield the trace of each run that meets the conditions, the newest first; damage goes to the reports."""
    machine = conditions.get("machine")
    if machine not in (None, LLM_LOOP.name):
        raise ConfigError(f"a backtest evaluates runs of {LLM_LOOP.name}, not of {machine!r}")
    query: RunFilter = {**conditions, "machine": LLM_LOOP.name}
    after: str | None = None
    while True:
        page = await runs.page(limit=PAGE, after=after, **query)
        for report in reports:
            report.damage = report.damage or page.damage
        for head in page.runs:
            if since is not None and head.created_at < since:
                return
            yield await read_trace(runs.journal, head)
        if not page.more:
            return
        after = page.runs[-1].run_id


async def read_trace(journal: Journal, head: RunHead) -> RunTrace:
    """Return the trace of a run. A run that cannot be read has a `problem`. Raises StoreDown."""
    try:
        records = await journal.load(head.run_id)
    except Corrupt as error:
        return RunTrace(head.run_id, head.graph, head.agent, problem=f"it is damaged: {error}")
    return trace_of(head.run_id, records)

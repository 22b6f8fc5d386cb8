"""Run an evaluation set against an agent: concurrent, within a budget, resumable through the agent's journal.

Each repetition of a case is a run whose id follows from the evaluation, the case and the agent. So a second call after
an interruption finds what the first one did: results are read, open runs are resumed, and only the rest is executed. A
case whose input changed, or an agent whose version, model, instructions, tools, parameters, limits or output type
changed, has other run ids and is executed again. If only its expectations changed, the recorded run is checked again.

An evaluation is itself a run in the journal: graph `evaluation`, owned while a process works on it.
So it uses the mechanisms of runs: two processes never work on one evaluation, the records of an interrupted one have
every result that was reached, and listings show it. It has no machine: nothing but `evaluate` resumes it.

    created     {…, agent, agent_version, tags: {evaluation: name}, evaluation: {selection, agent}}
    result      {at, unit, checked, result}         of one repetition of a case; the last one of a unit counts
    ended       {outcome: "completed", reason: "none", at, units}
                {outcome: "cancelled", reason: "caller", at}        by request, or another one was started in its place

An evaluation that a budget stopped, or whose process ended, is left open; the next call continues it.

Nobody waits for a person. One watcher answers the questions of all runs and their child runs: it reads the journal
after each change. A question that the case has no answer to ends the run: it is cancelled, so that no call of a test
waits for the approval of a real person.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, Self

import orjson

from orchestrator.errors import AnswerRefused, ConfigError, Held, RunError, RunOver, RunUnknown, StoreDown
from orchestrator.kernel.journal import (
    RECORD_SCHEMA,
    Draft,
    Journal,
    Lease,
    Record,
    RunHead,
    claimed,
    let_go,
    owner_name,
    write_records,
)
from orchestrator.llm.port import Clock
from orchestrator.machines.bound import out_of_range
from orchestrator.machines.question import Question
from orchestrator.runtime.evaluation.case import EvaluationCase, digest_of
from orchestrator.runtime.evaluation.check import ACTOR, CaseRun, Judge, check_run, judge_run, named_judges
from orchestrator.runtime.evaluation.report import CaseResult, CaseUsage, EvaluationReport
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import open_root
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.service.arguments import new_id, run_data
from orchestrator.tools.result import explain

GRAPH: Final = "evaluation"
"""Graph of the runs that represent evaluations."""
TAG: Final = "evaluation"
"""Tag of an evaluation and of the runs of its cases: the name of the evaluation."""
_SEARCHED: Final = 50


@dataclass(frozen=True, slots=True)
class EvaluationIdentity:
    """What makes a call continue an evaluation: the same name, agent and selection of cases."""

    name: str
    agent: str
    agent_version: str
    selection: Mapping[str, Any]

    def conditions(self) -> dict[str, Any]:
        """Return the conditions of a listing of its evaluations, the last one first."""
        return {"graph": GRAPH, "agent": self.agent, "tags": {TAG: self.name}, "descending": True}


@dataclass(slots=True)
class EvaluationLedger:
    """The records of an evaluation that this process owns."""

    run_id: str
    journal: Journal
    now: Callable[[], float]
    """Return the time in epoch seconds."""
    lease: Lease
    known: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Unit -> body of its last result."""

    def earlier(self, unit: str) -> CaseResult | None:
        """Return the recorded result of a unit; None without one."""
        body = self.known.get(unit)
        return None if body is None else CaseResult.from_json(body["result"], earlier=True)

    def checked(self, unit: str) -> str:
        """Return the digest of the expectations that the recorded result was checked with."""
        return str(self.known.get(unit, {}).get("checked", ""))

    async def record(self, unit: str, checked: str, result: CaseResult) -> None:
        """Make a result durable. Raises the errors of the journal."""
        await self._write("result", {"unit": unit, "checked": checked, "result": result.as_json()})

    async def end(self, units: Sequence[str]) -> None:
        """Record that each of these units has a result."""
        await self._write("ended", {"outcome": "completed", "reason": "none", "units": list(units)})

    async def cancel(self) -> None:
        """Record that it ends without a result of each case."""
        await self._write("ended", {"outcome": "cancelled", "reason": "caller"})

    async def is_cancelled(self) -> bool:
        """Return whether a person has asked to cancel it (`orchestrator runs cancel`)."""
        return any(request.kind == "cancel" for request in await self.journal.inbox(self.run_id))

    async def _write(self, kind: str, body: Mapping[str, Any]) -> None:
        await write_records(self.journal, self.lease, Draft(kind, {"at": self.now(), **body}))

    @classmethod
    async def claim(cls, run_id: str, journal: Journal, now: Callable[[], float]) -> Self:
        """Own an open evaluation. Raises ConfigError if another process owns it."""
        try:
            lease = await claimed(journal, run_id, owner_name())
        except Held as error:
            raise ConfigError(
                f"another process works on evaluation {run_id!r}: wait for its end, or give this one another name"
            ) from error
        return cls(run_id, journal, now, lease, _results(await journal.load(run_id)))

    @classmethod
    async def create(cls, identity: EvaluationIdentity, journal: Journal, now: Callable[[], float]) -> Self:
        """Start a new evaluation and own it."""
        run_id = f"eval-{new_id()[:12]}"
        body = {
            "schema": RECORD_SCHEMA,
            "graph": GRAPH,
            "fingerprint": "",
            "at": now(),
            "parent_run_id": None,
            "conversation_id": None,
            "agent": identity.agent,
            "agent_version": identity.agent_version,
            "tags": {TAG: identity.name},
            GRAPH: {"selection": identity.selection},
        }
        return cls(run_id, journal, now, await journal.create(run_id, owner_name(), body))


@asynccontextmanager
async def opened(
    identity: EvaluationIdentity, journal: Journal, now: Callable[[], float], *, new: bool
) -> AsyncIterator[EvaluationLedger]:
    """Own the open evaluation of this identity inside the block, or a new one.

    With `new`, or after a request to cancel it, the open one is ended as cancelled. Raises ConfigError if another
    process owns it.
    """
    found = await _open_one(identity, journal)
    ledger = None if found is None else await EvaluationLedger.claim(found, journal, now)
    if ledger is not None and (new or await ledger.is_cancelled()):
        try:
            await ledger.cancel()
        finally:
            await let_go(journal, ledger.lease)
        ledger = None
    ledger = ledger or await EvaluationLedger.create(identity, journal, now)
    try:
        yield ledger
    finally:
        await let_go(journal, ledger.lease)


async def _open_one(identity: EvaluationIdentity, journal: Journal) -> str | None:
    async for head in journal.runs(**identity.conditions(), status="open", limit=_SEARCHED):
        created = (await journal.load(head.run_id))[0].body
        if created[GRAPH]["selection"] == identity.selection:
            return head.run_id
    return None


async def previous(identity: EvaluationIdentity, journal: Journal) -> EvaluationReport | None:
    """Return the last complete evaluation of this name and agent, with any selection; None without one."""
    async for head in journal.runs(**identity.conditions(), outcome="completed", limit=1):
        return await stored_report(head, journal)
    return None


async def stored_report(head: RunHead, journal: Journal) -> EvaluationReport:
    """Return the report of an evaluation of the journal. Raises ConfigError if the run is none."""
    if head.graph != GRAPH:
        raise ConfigError(f"run {head.run_id!r} is no evaluation but a run of {head.graph!r}")
    records = await journal.load(head.run_id)
    ended: Mapping[str, Any] = records[-1].body if records[-1].kind == "ended" else {}
    known = _results(records)
    units = ended.get("units", known)
    return EvaluationReport(
        evaluation_id=head.run_id,
        name=head.tags.get(TAG, ""),
        agent=head.agent,
        agent_version=head.agent_version,
        results=tuple(CaseResult.from_json(body["result"]) for unit, body in known.items() if unit in units),
    )


def _results(records: Sequence[Record]) -> dict[str, Mapping[str, Any]]:
    return {str(record.body["unit"]): record.body for record in records if record.kind == "result"}


RUN_TAG: Final = "evaluation_run"
"""Tag of the runs of cases: run id of the evaluation."""
_POLL: Final = 0.05
"""Seconds between two looks at the version of the journal."""


class CasePerson:
    """The person who answers for the cases of one evaluation."""

    def __init__(self, runs: Runs, evaluation_id: str) -> None:
        self._runs = runs
        self._evaluation_id = evaluation_id
        self.cases: dict[str, EvaluationCase] = {}
        """Run id -> case, of the runs that are active."""
        self._handled: set[tuple[str, str, str]] = set()

    async def watch(self) -> None:
        """Answer until cancelled. Raises StoreDown."""
        seen = ""
        while True:
            version = await self._runs.version()
            if version != seen:
                waiting = self._runs.journal.runs(
                    status="parked", waiting=True, tags={RUN_TAG: self._evaluation_id}
                )
                for head in [head async for head in waiting]:
                    root = await open_root(self._runs.journal, head)
                    if root is not None and root in self.cases:
                        for question in await self._runs.pending(head.run_id):
                            await self._answer(question.run_id, root, question)
            seen = version
            await asyncio.sleep(_POLL)

    async def _answer(self, run_id: str, root: str, question: Question) -> None:
        if (run_id, question.key, question.digest) in self._handled:
            return
        self._handled.add((run_id, question.key, question.digest))
        answer = self.cases[root].answers.get(question.tool)
        why = f"it waits for a person: the case has no answer about {question.tool!r}"
        try:
            if answer is not None:
                key, digest = question.key, question.digest
                if answer.decision == "approve":
                    edited = None if answer.arguments is None else json.dumps(dict(answer.arguments))
                    await self._runs.approve(run_id, key, digest=digest, arguments=edited, by=ACTOR)
                elif answer.decision == "reject":
                    await self._runs.reject(run_id, key, digest=digest, why=answer.text, by=ACTOR)
                else:
                    await self._runs.respond(run_id, answer.text, key, digest=digest, by=ACTOR)
                return
        except AnswerRefused as error:
            if error.earlier is not None:  # another process has answered
                return
            why = f"it waits for a person: the answer about {question.tool!r} is refused: {error}"
        except (RunOver, RunUnknown):
            return
        await self._give_up(root, why)

    async def _give_up(self, run_id: str, why: str) -> None:
        try:
            await self._runs.cancel(run_id, by=ACTOR, why=why)
        except (RunOver, RunUnknown):
            return


CONCURRENCY: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationBudget:
    """The most that an evaluation may use. 0 is no limit. No case starts after it is used up; active ones end."""

    cost: float = 0.0
    """In the currency of the price table, with the runs of earlier processes of the evaluation."""
    tokens: int = 0
    """Input and output tokens, counted in the same way."""
    seconds: float = 0.0
    """Time of this call."""

    def __post_init__(self) -> None:
        for name in ("cost", "tokens", "seconds"):
            if fault := out_of_range(name, getattr(self, name), whole=name == "tokens"):
                raise ConfigError(f"budget {fault}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSelection:
    """Which cases are run, and how often. Empty names and tags select every case."""

    names: Sequence[str] = ()
    tags: Sequence[str] = ()
    """A case is selected if it has one of them."""
    repeat: int = 1

    def of(self, cases: Iterable[EvaluationCase]) -> list[EvaluationCase]:
        """Return the selected cases. Raises ConfigError if there are none, or if a name or number is invalid."""
        known = list(cases)
        if self.repeat < 1:
            raise ConfigError(f"repeat is {self.repeat}; it must be 1 or more")
        have = {case.name for case in known}
        if len(have) < len(known):
            raise ConfigError("two cases have one name: give each its own")
        if unknown := [name for name in self.names if name not in have]:
            raise ConfigError(f"there is no case {unknown[0]!r}; the cases: {', '.join(sorted(have)):.500}")
        found = [
            case
            for case in known
            if (not self.names or case.name in self.names) and (not self.tags or {*self.tags} & {*case.tags})
        ]
        if not found:
            tags = sorted({tag for case in known for tag in case.tags})
            raise ConfigError(f"no case is selected; the tags of the cases: {', '.join(tags) or 'none'}")
        return found


class _Unit(NamedTuple):
    case: EvaluationCase
    repetition: int
    run_id: str

    @property
    def key(self) -> str:
        return f"{self.case.name}#{self.repetition}"


async def evaluate(
    agent: Agent[Any, Any],
    cases: Iterable[EvaluationCase],
    *,
    name: str = "evaluation",
    judges: Mapping[str, Judge] | Iterable[Judge] = (),
    concurrency: int = CONCURRENCY,
    budget: EvaluationBudget = EvaluationBudget(),
    selection: CaseSelection = CaseSelection(),
    new: bool = False,
    each: Callable[[CaseResult], object] | None = None,
) -> EvaluationReport:
    """Run cases against an agent and check what is expected of them.

    If the journal of the agent has an evaluation of this name, agent and selection that was interrupted, or stopped by
    its budget, it is continued: cases with a result are not executed again, interrupted runs are resumed. A cancelled
    caller leaves it open in this way.

    Args:
        agent: The agent. Its journal stores the evaluation, and each case as a run with the tags `evaluation` and
            `case`.
        cases: The cases, from `load_cases` or made in code.
        name: Name of the evaluation, by which it is continued and compared.
        judges: Functions of a CaseRun, by name or with their own names; a case can select some of them.
        concurrency: Most runs at once.
        budget: The most that the evaluation may use.
        selection: Cases to run, and repetitions.
        new: Start a new evaluation; an open one is ended as cancelled.
        each: Called with each result as soon as it is durable.

    Returns:
        The report. Its `baseline` is the last evaluation of this name and agent that ended.

    Raises:
        ConfigError: An argument is invalid, or another process works on this evaluation. Nothing was run.
        StoreDown: The journal is unavailable.

    Example:
        report = await evaluate(agent, load_cases("support.yaml"), name="support", judges=[polite])
        assert report.passed, report.failing
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; it must be 1 or more")
    run_data(None, {TAG: name})
    chosen, by_name = selection.of(cases), named_judges(judges)
    _check_names(chosen, agent, by_name)
    hosting = agent.hosting
    identity = EvaluationIdentity(
        name, agent.identity.name, agent.identity.version, orjson.loads(orjson.dumps(asdict(selection)))
    )
    baseline = await previous(identity, hosting.journal)
    async with opened(identity, hosting.journal, hosting.clock.time, new=new) as ledger:
        work = _Evaluation(agent, ledger, name, by_name, budget, hosting.clock, hosting.journal, each)
        units = list(_units(chosen, selection.repeat, ledger.run_id, agent_digest(agent)))
        await work.run(units, concurrency)
        await work.end(units)
    order = {case.name: number for number, case in enumerate(chosen)}
    return EvaluationReport(
        evaluation_id=work.ledger.run_id,
        name=identity.name,
        agent=identity.agent,
        agent_version=identity.agent_version,
        results=tuple(sorted(work.results.values(), key=lambda one: (order[one.case], one.repetition))),
        not_run=tuple(case.name for case in chosen if case.name in work.not_run),
        stopped=work.stopped,
        cancelled=work.cancelled,
        baseline=baseline,
    )


@dataclass(slots=True)
class _Evaluation:
    """The work of one call."""

    agent: Agent[Any, Any]
    ledger: EvaluationLedger
    name: str
    judges: Mapping[str, Judge]
    budget: EvaluationBudget
    clock: Clock
    journal: Journal
    each: Callable[[CaseResult], object] | None
    results: dict[str, CaseResult] = field(default_factory=dict)
    not_run: set[str] = field(default_factory=set)
    stopped: str = ""
    cancelled: bool = False
    _used: dict[str, CaseUsage] = field(default_factory=dict)
    """Run id -> usage, also of runs that are no longer part of the evaluation."""
    _began: float = 0.0
    _person: Any = None

    async def run(self, units: Sequence[_Unit], concurrency: int) -> None:
        """Give each unit a result, or note that it was not run."""
        self._began = self.clock.monotonic()
        self._used = {
            known.run_id: known.usage for known in map(self.ledger.earlier, self.ledger.known) if known
        }
        self._person = CasePerson(self.agent.runs, self.ledger.run_id)
        rest = iter([unit for unit in units if not self._is_known(unit)])
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._person.watch())
                workers = [group.create_task(self._work(rest)) for _ in range(concurrency)]
                await asyncio.wait(workers)
                watching.cancel()
        except BaseExceptionGroup as errors:  # the first one has cancelled the other tasks
            raise errors.exceptions[0] from None

    async def end(self, units: Sequence[_Unit]) -> None:
        """End the evaluation, unless a budget left units for the next call."""
        if self.cancelled:
            await self.ledger.cancel()
        elif not self.not_run:
            await self.ledger.end([unit.key for unit in units])

    def _is_known(self, unit: _Unit) -> bool:
        """Take the recorded result of a unit if it is still valid."""
        known = self.ledger.earlier(unit.key)
        valid = known is not None and known.run_id == unit.run_id and known.status != "error"
        if known is None or not valid or self.ledger.checked(unit.key) != self._checks(unit):
            return False
        self.results[unit.key] = known
        return True

    def _has_run(self, unit: _Unit) -> bool:
        """Return whether the run of a unit has ended, so that its check needs no budget."""
        known = self.ledger.earlier(unit.key)
        return known is not None and known.run_id == unit.run_id and bool(known.outcome)

    async def _work(self, units: Iterator[_Unit]) -> None:
        for unit in units:
            self.stopped = self.stopped or await self._refused() or self._exhausted()
            if self.stopped and not self._has_run(unit):
                self.not_run.add(unit.case.name)
                continue
            result = await self._result(unit)
            await self.ledger.record(unit.key, self._checks(unit), result)
            self.results[unit.key], self._used[unit.run_id] = result, result.usage
            if self.each is not None:
                self.each(result)

    async def _result(self, unit: _Unit) -> CaseResult:
        self._person.cases[unit.run_id] = unit.case
        try:
            await self._execute(unit)
            return await self._judged(unit)
        except StoreDown:
            raise
        except Exception as error:  # noqa: BLE001 - of the agent: the other cases continue
            return CaseResult(
                case=unit.case.name,
                repetition=unit.repetition,
                run_id=unit.run_id,
                outcome="",
                usage=CaseUsage(),
                error=explain(error),
            )
        finally:
            del self._person.cases[unit.run_id]

    async def _execute(self, unit: _Unit) -> None:
        """Run the case, resume its run, or do nothing if that has ended."""
        try:
            head = await self.journal.head(unit.run_id)
        except RunUnknown:
            tags = {TAG: self.name, RUN_TAG: self.ledger.run_id, "case": unit.case.name}
            await self.agent.run(
                unit.case.prompt,
                run_id=unit.run_id,
                metadata=unit.case.metadata,
                tags={**tags, "repetition": str(unit.repetition)},
            )
            return
        if head.status != "ended":
            await self.agent.resume(unit.run_id)

    async def _judged(self, unit: _Unit) -> CaseResult:
        records = await self.journal.load(unit.run_id)
        if records[-1].kind != "ended":
            raise RunError(f"run {unit.run_id!r} has no end in the journal; evaluate again to resume it")
        run = CaseRun.of(unit.case, unit.run_id, records)
        checks = check_run(run)
        if not run.waited:
            checks += [
                await judge_run(name, self.judges[name], run, self.clock)
                for name in self._selected(unit.case)
            ]
        usage = run.result.usage
        return CaseResult(
            case=unit.case.name,
            repetition=unit.repetition,
            run_id=unit.run_id,
            outcome=run.outcome,
            reason=run.result.reason,
            checks=tuple(checks),
            usage=CaseUsage(
                requests=run.requests,
                tokens=usage.input_tokens + usage.output_tokens,
                cost_micros=None if usage.cost_micros is None else usage.cost_for_limits,
                currency=str(records[0].body.get("currency") or ""),
                seconds=run.seconds,
            ),
        )

    def _selected(self, case: EvaluationCase) -> Sequence[str]:
        return tuple(self.judges) if case.judges is None else case.judges

    def _checks(self, unit: _Unit) -> str:
        """Return a digest of what the verdict depends on beside the run."""
        return digest_of([unit.case.checks_digest, *self._selected(unit.case)], _named)

    async def _refused(self) -> str:
        """Return that a person has cancelled the evaluation, or ""."""
        self.cancelled = await self.ledger.is_cancelled()
        return "a person has cancelled the evaluation" if self.cancelled else ""

    def _exhausted(self) -> str:
        """Return which budget is used up, or ""."""
        used = CaseUsage.sum(self._used.values())
        budget, seconds = self.budget, self.clock.monotonic() - self._began
        if budget.cost and used.requests and used.cost is None:
            return (
                "the cost of the runs is not known, or is in several currencies, so the budget cannot be kept: give "
                "the agent prices in one currency"
            )
        if budget.cost and (used.cost or 0) >= budget.cost:
            return f"the cost budget of {budget.cost:g} is used up ({used.cost:g})"
        if budget.tokens and used.tokens >= budget.tokens:
            return f"the budget of {budget.tokens:,} tokens is used up ({used.tokens:,})"
        if budget.seconds and seconds >= budget.seconds:
            return f"the time budget of {budget.seconds:g} s is used up"
        return ""


def _units(cases: Sequence[EvaluationCase], repeat: int, evaluation_id: str, agent: str) -> Iterator[_Unit]:
    """Yield the units: each case once, then each again, so that a budget stops repetitions first."""
    for repetition in range(1, repeat + 1):
        for case in cases:
            digest = digest_of([case.digest, agent, repetition])
            yield _Unit(case, repetition, f"{evaluation_id}-{digest[:12]}")


def agent_digest(agent: Agent[Any, Any]) -> str:
    """Return a digest of what decides how an agent works. Functions count by their names."""
    handles, identity = agent._deps, agent.identity  # noqa: SLF001 - what a variant would have to change
    parts = [*identity, agent.hosting.models, agent._instructions, agent._limits, handles.params]  # noqa: SLF001
    return digest_of([*parts, None if handles.output is None else handles.output.schema], _named)


def _named(value: object) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _check_names(
    cases: Iterable[EvaluationCase], agent: Agent[Any, Any], judges: Mapping[str, Judge]
) -> None:
    """Raise ConfigError for a state, a tool or a judge that does not exist: such an expectation would check nothing."""
    tools = [tool for hosting in (agent.hosting, *agent.hosting.tree()) for tool in hosting.tools]
    for case in cases:
        path, calls = case.expect.transitions, case.expect.tools
        states = (*path.visited, *path.not_visited, *path.order, *path.path)
        called = (
            *(one.tool for one in calls.called),
            *calls.not_called,
            *calls.order,
            *calls.asked,
            *case.answers,
        )
        _known(case, "state", states, agent.hosting.states)
        _known(case, "tool", called, tools)
        _known(case, "judge", case.judges or (), list(judges))


def _known(case: EvaluationCase, what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            have = ", ".join(dict.fromkeys(known)) or "none"
            raise ConfigError(f"case {case.name!r}: there is no {what} {name!r}; {meant}there are: {have}")

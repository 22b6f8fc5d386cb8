"""The log: one JSON line for every transition and for what else an operator asks about.

Levels are a contract: transitions and the beginning and end of runs are INFO, what failed is WARNING, a
failed run is ERROR. Nothing that an alert or a runbook relies on is DEBUG. No line has prompts, arguments or
results.

A line is written when its transition is durable, before the run does anything else. A process that is killed may owe
each run that it held the lines of one commit, its last append (three transitions of the loop at most), and never has
a line of what is not in the journal. What is owed is not told later: the journal has it (`orchestrator runs events`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.kernel.clock import WHOLE, micros
from orchestrator.kernel.record import (
    Attempt,
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    RunCompleted,
    RunParked,
    RunStarted,
    ToolCall,
    Transition,
    WorkAbandoned,
)
from orchestrator.llm.message import finish_word
from orchestrator.telemetry.line import (
    LEVELS,
    SCHEMA,
    LineWriter,
    SafeLogger,
    build,
    level_number,
    number,
    stamp,
    totals,
    verdict_fields,
)
from orchestrator.telemetry.redaction import error_fields, raised_at
from orchestrator.telemetry.sink import BoundedWriter, Stream
from orchestrator.telemetry.span import Trace, span_of
from orchestrator.telemetry.tally import LineCounts
from orchestrator.telemetry.transition_line import TRANSITION, TransitionLines

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_BOUND = {"level", "schema", "run_id", "machine"}
"""What a host's logger has bound, or adds itself."""
_MOST_RUNS = 20_000
"""Bound loggers kept. Events fired by hand never tell that their run is over, so the oldest make room."""


class TransitionLog:
    """Writes facts as JSON lines in the schema of log_schema.json.

    `stream` is a text or binary file, or a BoundedWriter; None is what sys.stdout is at each line. `logger` is a
    structlog logger of the host's, used instead, with its own chain. Lines below `level` are not even put together.
    `trace` returns trace_id and span_id of the present span, or None. Raises ConfigError for an unknown level, and for
    a stream that is none.

    Example:
        >>> TransitionLog(level="warning").level
        'warning'
    """

    component = "logs"
    """Under which Metrics count what it raises."""

    def __init__(
        self,
        stream: Stream | None = None,
        *,
        logger: FilteringBoundLogger | None = None,
        level: str = "info",
        trace: Trace | None = None,
    ) -> None:
        threshold = level_number(level)
        self.level = level.lower()
        self._debug = threshold <= LEVELS["debug"]
        self._trace = trace
        self._lines: TransitionLines | None = None
        if logger is None:
            writer = LineWriter(stream)
            self._root, self._lent = build(writer, threshold), build(SafeLogger(writer), threshold)
            bounded = (stream.tally,) if isinstance(stream, BoundedWriter) else ()
            self.tallies: tuple[LineCounts, ...] = (writer.tally, *bounded)
            """How many lines were written, and dropped; none where the host's logger writes."""
            # Past structlog's chain, which would cost as much again and change nothing.
            self._lines = TransitionLines(writer.info, self._fields, _MOST_RUNS)
        else:
            self._root = self._lent = logger.bind(schema=SCHEMA)
            self.tallies = ()
        self._runs: dict[tuple[str, str], FilteringBoundLogger] = {}
        self._by_type: dict[type[Any], Callable[[Any], None]] = {
            RunCompleted: self._completed,
            RunParked: self._parked,
            EventFailed: self._failed,
            BudgetChecked: self._budgets,
            Attempt: self._attempt,
            GuardEvaluated: self._guard,
            LLMCall: self._llm,
            ToolCall: self._tool,
            JournalWrite: self._journal,
            WorkAbandoned: self._abandoned,
        }
        if threshold <= LEVELS["info"]:
            self._by_type |= {Transition: self._transition(), RunStarted: self._started}

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return what writes the lines of facts of a kind; None where none has one at this level."""
        is_plain = type(self).observe is TransitionLog.observe  # else a class of a host adds to it
        return self._by_type.get(kind) if is_plain else self.observe

    def observe(self, fact: Fact, /) -> None:
        """Write the line of a fact, if it has one at this level. Raises OSError when the stream does."""
        write = self._by_type.get(type(fact))
        if write is not None:
            write(fact)

    @property
    def logger(self) -> FilteringBoundLogger:
        """The logger of lines that belong to no run."""
        return self._root

    def bound(self, run_id: str, machine: str) -> FilteringBoundLogger:
        """Return the logger of a run, run_id and machine bound. It raises what the stream does."""
        key = (machine, run_id)
        found = self._runs.get(key)
        if found is None:
            while len(self._runs) >= _MOST_RUNS:
                del self._runs[next(iter(self._runs))]
            found = self._runs[key] = self._root.bind(run_id=run_id, machine=machine)
        return found

    def lent(self, run_id: str, machine: str) -> FilteringBoundLogger:
        """Return what `logger_from_context()` gives code inside a run: a line that cannot be written is counted."""
        return self._lent.bind(run_id=run_id, machine=machine)

    def _drop(self, fact: RunCompleted | RunParked) -> FilteringBoundLogger:
        logger = self.bound(fact.run_id, fact.graph)
        del self._runs[fact.graph, fact.run_id]
        if self._lines is not None:
            self._lines.forget((fact.graph, fact.run_id))
        return logger

    def _transition(self) -> Callable[[Transition], None]:
        """Return what writes the line of a transition: from a template, unless each line has a span of its own."""
        if self._lines is None:
            return self._lend
        return self._lines.write if self._trace is None else self._lines.write_fields

    def _lend(self, fact: Transition) -> None:
        """Give the fields of a transition to the host's logger."""
        fields = self._fields(fact)
        run = self.bound(fact.run_id, fact.graph)
        run.info(fields.pop("msg"), **{key: fields[key] for key in fields if key not in _BOUND})

    def _fields(self, fact: Transition) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "ts": stamp(fact.at),
            "level": "info",
            "msg": TRANSITION,
            "schema": SCHEMA,
            "run_id": fact.run_id,
            "machine": fact.graph,
            "seq": fact.seq,
            "iteration": fact.iteration,
            "from_state": fact.source,
            "fsm_event": fact.event,
            "to_state": fact.dest,
            "outcome": "ok",
            "state_duration_s": micros(fact.dwell),
        }
        if fact.guard is not None:
            fields["guard"] = fact.guard
            fields["guard_result"] = "allow"
        if fact.verdict is not None or fact.internal or fact.tokens or fact.reason:
            fields |= _seldom(fact)
        if fact.overhead is not None:
            fields["overhead_s"] = (fact.overhead * 1e9 + WHOLE - WHOLE) / 1e9
        if self._trace is not None:
            fields |= self._span()
        return fields

    def _started(self, fact: RunStarted) -> None:
        parent = {"parent_run_id": fact.parent_run_id} if fact.parent_run_id else {}
        message = "run.resumed" if fact.origin == "resumed" else "run.started"
        self.bound(fact.run_id, fact.graph).info(message, ts=stamp(fact.at), **parent)

    def _failed(self, fact: EventFailed) -> None:
        self._now(fact).warning(
            "fsm.transition_failed",
            ts=stamp(fact.at),
            iteration=fact.iteration,
            from_state=fact.state,
            fsm_event=fact.event,
            reason=fact.reason,
            **({"hook": fact.hook} if fact.hook else {}),
            **({"committed": True} if fact.committed else {}),
            **({"where": where} if (where := raised_at(fact.error)) else {}),
            **error_fields(fact.error),
            **self._span(),
        )

    def _completed(self, fact: RunCompleted) -> None:
        logger = self._drop(fact)
        say = logger.error if fact.outcome == "failed" else logger.info
        say(
            "run.completed",
            ts=stamp(fact.at),
            seq=fact.transitions,
            iteration=fact.iterations,
            state=fact.state,
            outcome=fact.outcome,
            reason=fact.reason,
            run_duration_s=micros(fact.seconds),
            **totals(fact.summary),
            **verdict_fields(fact.verdict),
            **error_fields(fact.error),
            **self._span(),
        )

    def _parked(self, fact: RunParked) -> None:
        self._drop(fact).info("run.parked", ts=stamp(fact.at), state=fact.state, reason=fact.reason)

    def _budgets(self, fact: BudgetChecked) -> None:
        for verdict in fact.verdicts:
            if not verdict.ok:
                used = {v.guard: round(v.observed / v.limit, 4) for v in fact.verdicts if v.limit}
                self._now(fact).warning(
                    "budget.exceeded",
                    iteration=fact.iteration,
                    state=fact.state,
                    budget_used=used,
                    **verdict_fields(verdict),
                )
                return

    def _guard(self, fact: GuardEvaluated) -> None:
        if fact.result == "allow" and not self._debug:
            return
        logger = self._now(fact)
        say = {"allow": logger.debug, "deny": logger.info}.get(fact.result, logger.warning)
        say(
            "fsm.guard",
            from_state=fact.state,
            fsm_event=fact.event,
            guard=fact.guard,
            guard_result=fact.result,
            observed=number(fact.observed),
            limit=number(fact.limit),
        )

    def _attempt(self, fact: Attempt) -> None:
        if fact.outcome == "ok":
            return
        again = fact.outcome == "retry"
        self._now(fact).warning(
            "retry.scheduled" if again else "retry.exhausted",
            operation=fact.operation,
            attempt=fact.number,
            reason=fact.reason or "other",
            **({"retry_in_s": micros(fact.delay)} if again else {}),
        )

    def _llm(self, fact: LLMCall) -> None:
        if fact.outcome == "ok" and not self._debug:
            return
        logger = self._now(fact)
        say = logger.debug if fact.outcome == "ok" else logger.warning
        say(
            "llm.request",
            iteration=fact.iteration,
            state=fact.state,
            model=fact.model,
            outcome=fact.outcome,
            duration_s=micros(fact.seconds),
            **({"queued_s": micros(fact.queued)} if fact.queued else {}),
            tokens_in=fact.input_tokens,
            tokens_out=fact.output_tokens,
            tokens_cached=fact.cached_input_tokens,
            tokens_reasoning=fact.reasoning_tokens,
            cost=fact.cost,
            finish_reason=finish_word(fact.finish_reason),
            tool_calls=fact.tool_calls,
            **self._span(),
        )

    def _tool(self, fact: ToolCall) -> None:
        if fact.outcome == "ok" and not self._debug:
            return
        logger = self._now(fact)
        say = logger.debug if fact.outcome == "ok" else logger.warning
        say(
            "tool.call",
            iteration=fact.iteration,
            position=fact.position,
            tool=fact.tool,
            outcome=fact.outcome,
            duration_s=micros(fact.seconds),
            queued_s=micros(fact.queued),
            result_chars=fact.result_chars,
            cut=fact.cut,
            **self._span(),
        )

    def _journal(self, fact: JournalWrite) -> None:
        if fact.outcome != "ok":
            self._now(fact).error(
                "journal.failed",
                backend=fact.backend,
                operation=fact.operation,
                records=fact.records,
                reason=fact.outcome,
                duration_s=micros(fact.seconds),
            )

    def _abandoned(self, fact: WorkAbandoned) -> None:
        self._now(fact).warning("work.abandoned", state=fact.state, kind=fact.kind, name=fact.name)

    def _span(self) -> dict[str, str]:
        return {} if self._trace is None else span_of(self._trace) or {}

    def _now(self, fact: Fact) -> FilteringBoundLogger:
        """Return the run's logger, without keeping one for a run that is over."""
        found = self._runs.get((fact.graph, fact.run_id))
        return found or self._root.bind(run_id=fact.run_id, machine=fact.graph)


def _seldom(fact: Transition) -> dict[str, Any]:
    """Return what few transitions say."""
    fields = {} if fact.verdict is None else verdict_fields(fact.verdict)
    if fact.internal:
        fields["internal"] = True
    if fact.tokens:
        fields["tokens"] = fact.tokens
    if fact.reason:
        fields["reason"] = fact.reason
    return fields

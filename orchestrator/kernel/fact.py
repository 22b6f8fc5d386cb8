"""Facts: the values that logs, metrics, history, traces and streams receive, and the observers that receive them.

A fact is created once, where the event happens, and is never changed. No fact has prompts, arguments or results, so
every fact may be logged. Content goes only to the follower of a run, from which its stream is made.

Facts report completed actions, so no fact can make the span of a call the current one while the call runs. An observer
may therefore have a method `around(call)`. It returns a context manager that is entered in the task of the call,
directly around the host's code, so that the code and its threads inherit the context variables. Without such an
observer a call has one comparison more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, get_args

from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.value import value
from orchestrator.kernel.value import value as fact


@fact(frozen=True, slots=True)
class RunStarted:
    """A run entered its graph. `origin` is `new` or `resumed`."""

    graph: str
    run_id: str
    at: float
    origin: str = "new"
    parent_run_id: str | None = None
    state: str = ""
    """State in which the run begins or continues."""
    dwell: float = 0.0
    """Seconds that it was active in that state before."""
    elapsed: float = 0.0
    """Seconds that it was active before."""
    agent: str = ""
    """Name of the agent; empty if it has none."""
    agent_version: str = ""
    conversation_id: str | None = None


@fact(frozen=True, slots=True)
class Transition:
    """One committed edge. `seq` counts them from 1 without a gap; `dwell` is seconds spent in `source`."""

    graph: str
    run_id: str
    seq: int
    event: str
    source: str
    dest: str
    dwell: float
    at: float
    iteration: int
    guard: str | None = None
    """Name of the guard that allowed the edge, if it has one."""
    internal: bool = False
    """The edge stayed in its state: leave and enter hooks did not run."""
    verdict: Any = None
    """The guard verdict that ended the run, on the edge that ended it."""
    overhead: float | None = field(default=None, compare=False)
    """Seconds of the kernel itself, up to the call of observers, without hooks and journal; None: not measured."""
    tokens: int = 0
    """Tokens that the work of `source` used, in graphs whose hooks set a TransitionNote."""
    reason: str = ""
    """Reason in a few words, from the same note."""


class TransitionNote(NamedTuple):
    """Describes the stay in a state, in the transition that ends it. Pass it to `run.annotate`."""

    tokens: int = 0
    reason: str = ""
    seconds: float | None = None
    """Duration of the stay, if the code that did the work knows it better than the clock."""


@fact(frozen=True, slots=True)
class EventFailed:
    """An event that was not committed, or whose hook raised afterwards. `reason` is one of FAILURES."""

    graph: str
    run_id: str
    state: str
    event: str
    reason: str
    at: float
    iteration: int
    hook: str | None = None
    error: BaseException | None = None
    committed: bool = False


FAILURES = (
    "callback_error",
    "guard_error",
    "refused",
    "undeclared_edge",
    "unknown_event",
    "journal_error",
    "timeout",
    "cancelled",
)
"""Reasons of failed events: the closed label set of `transition_failures_total{reason}`."""


@fact(frozen=True, slots=True)
class GuardEvaluated:
    """Result of the guard of an edge, or of the join of a state's branches, which has the event "".

    `guard` is its name in the table, or `joined`. `result` is `allow`, `deny` or `error`.
    """

    graph: str
    run_id: str
    state: str
    event: str
    guard: str
    result: str
    observed: float
    limit: float


@fact(frozen=True, slots=True)
class BudgetChecked:
    """All budget and progress guards of one turn, evaluated together; the first refusal decides."""

    graph: str
    run_id: str
    state: str
    iteration: int
    verdicts: Sequence[Any]
    """The verdicts, each with ok, guard, observed, limit, detail."""


@fact(frozen=True, slots=True)
class OperationAttempt:
    """One attempt of an operation that may be repeated.

    `operation` is one of OPERATIONS. `outcome` is `ok`, `retry` (another attempt follows after `delay` seconds) or
    `exhausted`. `reason` is the cause of the failure, from `errors.ERROR_KINDS`, `schema_invalid`, `truncated` or
    `guardrail`.
    """

    graph: str
    run_id: str
    operation: str
    number: int
    outcome: str
    reason: str | None = None
    delay: float = 0.0


OPERATIONS = ("llm", "tool", "completion", "journal", "compaction", "memory")


@fact(frozen=True, slots=True)
class LLMCall:
    """One attempt of a request to a model. `seconds` is the duration of this attempt."""

    graph: str
    run_id: str
    state: str
    iteration: int
    model: str
    outcome: str
    """`ok`, `cancelled`, or one of errors.ERROR_KINDS."""
    seconds: float
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    finish_reason: str | None = None
    tool_calls: int = 0
    first_token: float | None = None
    """Seconds until the first token, if the answer was streamed."""
    context_used: float | None = None
    """Share of the model's context that request and answer fill, if its size is known."""
    at: float = 0.0
    """Start of this attempt (epoch seconds); 0 if unknown."""
    queued: float | None = None
    """Seconds of waiting for a rate limiter before that; they are not in `seconds`. None without a limiter."""
    usage_unreported: bool = False
    """An answer whose server reported no usage: its tokens are 0 here, and limits count an estimate."""
    error: Exception | None = None
    """The error of an attempt that failed."""
    estimated_cost_micros: int = 0
    """Least cost of an attempt without usage (interrupted, or not reported), in millionths of the currency."""
    response_model: str | None = None
    """Name of the model that answered, as its server reports it."""
    response_id: str | None = None
    """Id of the answer at its server."""
    server: tuple[str, int] | None = None
    """Host and port of the server that was asked; None if the model has none."""


@value(frozen=True, slots=True)
class ToolError:
    """An exception that a tool raised: what it was, and where in the code of the tool."""

    tool: str
    type: str
    """Name of the class of the exception."""
    message: str
    """Its text without probable secrets, at most 2,000 characters. It can have contents, so no log line has it."""
    where: str = ""
    """File and line of the innermost frame in the file of the tool, as `shop.py:12`; "" if it has none."""
    bug: bool = False
    """True if exceptions of this class are a fault of the code (`orchestrator.tools.tool_error.BUGS`)."""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception with its traceback; None in another process than that of the call."""

    def __str__(self) -> str:
        at = self.where and f" ({self.where})"
        return f"tool {self.tool} raised {self.type}: {self.message}{at}"

    def as_record(self) -> dict[str, Any]:
        """Return the error as a member of a record; `of_record` is the reverse."""
        return {"type": self.type, "message": self.message, "where": self.where, "bug": self.bug}

    @classmethod
    def of_record(cls, tool: str, body: Mapping[str, Any]) -> Self:
        """Return the error of a record."""
        return cls(tool, str(body["type"]), str(body["message"]), str(body["where"]), bool(body["bug"]))


@fact(frozen=True, slots=True)
class ToolExecution:
    """One tool call, by (iteration, position). `queued` has the seconds of waiting for a slot; `seconds` has not."""

    graph: str
    run_id: str
    iteration: int
    position: int
    tool: str
    """The registered name, or `_unregistered`."""
    outcome: str
    """`ok`, `result_unreadable` (the tool ran and its result cannot be shown), `error`, `timeout`, `retry`, `denied`,
    `invalid_args`, `duplicate_keys`, `unstable_args` or `cancelled`."""
    seconds: float
    queued: float = 0.0
    result_chars: int = 0
    cut: bool = False
    at: float = 0.0
    """Start of the tool (epoch seconds), after its wait for a slot; 0 if no tool ran or the time is unknown."""
    error: ToolError | None = None
    """The exception that the tool raised, if the outcome is `error`."""
    call_id: str = ""
    """Id of the call in the model's answer."""


@fact(frozen=True, slots=True)
class JournalWrite:
    """A write to the journal: outcome `ok`, or `io`, `locked`, `full`, `corrupt`, `other`.

    `operation` is `append`, or `create` for a run that the store refused to create.
    """

    graph: str
    run_id: str
    backend: str
    operation: str
    records: int
    seconds: float
    outcome: str = "ok"
    journal: str = ""
    """Path or address of the journal after a failure; empty for a journal in memory."""


@fact(frozen=True, slots=True)
class RunParked:
    """The run left this process without having ended: it waits for an answer, or was interrupted."""

    graph: str
    run_id: str
    state: str
    reason: str
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


@fact(frozen=True, slots=True)
class RunCompleted:
    """The run reached a terminal state. The fact has the totals of the whole run."""

    graph: str
    run_id: str
    state: str
    outcome: str
    reason: str
    at: float
    seconds: float
    transitions: int
    iterations: int
    summary: Any = None
    """Totals of the graph (for llm_loop: usage, tool calls, restarts, budgets used)."""
    error: BaseException | None = None
    verdict: Any = None
    agent: str = ""
    """Name of the agent; empty if it has none."""


@fact(frozen=True, slots=True)
class RunAdmitted:
    """An engine started a run that was queued for `waited` seconds."""

    graph: str
    run_id: str
    waited: float
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


@fact(frozen=True, slots=True)
class AdmissionRejected:
    """A run was refused before it existed. `reason` is one of REJECTIONS."""

    graph: str
    run_id: str
    reason: str
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


REJECTIONS = ("queue_full", "draining", "closed", "journal_error", "invalid_table")
"""Reasons for the refusal of a run: the queue is full, the engine stops, an operator stopped admission,
the journal could not create it, or a change left an invalid table."""


@fact(frozen=True, slots=True)
class TableRejected:
    """A change of a live machine left an invalid table: its runs are parked, and new ones are refused.

    Published once until a change makes the table valid again.
    """

    graph: str
    problems: Sequence[str]
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""
    run_id: str = ""
    """Empty: it concerns every run of the machine."""


@fact(frozen=True, slots=True)
class RunRecovered:
    """A run that its last owner left open was found in the journal. `outcome` is one of RECOVERIES."""

    graph: str
    run_id: str
    outcome: str
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


RECOVERIES = ("resumed", "poison", "other_graph", "corrupt")
"""Results of the recovery of a run: it continues, or the reason why it does not."""


@fact(frozen=True, slots=True)
class AnswerLost:
    """The answer to a request was lost with the process that had sent it. The resumed run is charged an estimate."""

    graph: str
    run_id: str
    model: str
    cost_micros: int
    """The charge in millionths of the currency; 0 if no price is known."""
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


@fact(frozen=True, slots=True)
class HandedOver:
    """The conversation of a run was handed over: the next segment is that of `to`."""

    graph: str
    run_id: str
    source: str
    """Name of the agent that had the conversation."""
    to: str
    at: float
    agent: str = ""
    """Name of the agent whose run it is."""


@fact(frozen=True, slots=True)
class RolledBack:
    """An attempt to undo an effect. `outcome` is one of ROLLBACKS."""

    graph: str
    run_id: str
    outcome: str
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


ROLLBACKS = ("undone", "already", "kept", "failed")
"""Results of an undo: done, already undone, kept because the target was changed since, or failed."""


@fact(frozen=True, slots=True)
class BranchEnded:
    """A branch of a state has ended, or was not started because the join was decided before."""

    graph: str
    run_id: str
    """The run that has the branches."""
    state: str
    index: int
    """Position of its item."""
    branch_id: str
    """The run of the branch."""
    outcome: str
    """One of BRANCHES."""
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


BRANCHES = (*(outcome.value for outcome in Outcome), "not_started")
"""Outcomes of branches: those of runs, and of a branch that was not needed before it started."""


@fact(frozen=True, slots=True)
class WorkAbandoned:
    """Host code did not end within the grace period after its cancellation. It may still run; nothing waits for it."""

    graph: str
    run_id: str
    state: str
    kind: str
    name: str
    at: float
    agent: str = ""
    """Name of the agent; empty if it has none."""


ABANDONED_KINDS = ("tool", "mcp", "model", "hook", "memory", "stage")
"""Kinds of work that can be abandoned. An MCP call is the tool of a server; a stage is code that a host added."""


Fact: TypeAlias = (
    RunStarted
    | Transition
    | EventFailed
    | GuardEvaluated
    | OperationAttempt
    | LLMCall
    | ToolExecution
    | BudgetChecked
    | JournalWrite
    | RunParked
    | RunCompleted
    | RunAdmitted
    | AdmissionRejected
    | TableRejected
    | RunRecovered
    | AnswerLost
    | HandedOver
    | RolledBack
    | BranchEnded
    | WorkAbandoned
)
FACTS: frozenset[type] = frozenset(get_args(Fact))
"""The classes of facts."""

# ---- for those who follow one run ----


class RecordsWritten(NamedTuple):
    """The records of one append of a run, which are durable. They have content, so no observer receives them."""

    run_id: str
    records: Sequence[Record]


Follower: TypeAlias = Callable[[Any], None]
"""Receives RecordsWritten, and the pieces of an answer of the model as they arrive.

Must be quick and must not block. Its errors are counted as those of an observer.
"""


class Observer(Protocol):
    """Receives every fact, in order, on the event loop. Its errors are counted and cannot fail a run.

    If it has a method `observer_failed(observer)`, that is called with each observer that raises. If it has
    `hears(kind)`, that returns, for a class of facts, the function to call in place of `observe`, or None to skip the
    class. If it has `around(call)`, that returns a context manager, which is entered around each model request and
    tool call in the task that runs it (`orchestrator.kernel.fact`).
    """

    def observe(self, fact: Fact, /) -> None:
        """Process a fact. Must be quick and must not block."""
        ...


@value(frozen=True, slots=True)
class Call:
    """A model request or a tool call that starts now. The fact about its end has the same key."""

    graph: str
    run_id: str
    kind: Literal["model", "tool"]
    name: str
    """Name of the configured model, or registered name of the tool."""
    iteration: int
    position: int
    """Position of a tool call in its answer; 0 for a model request."""
    at: float
    """Start (epoch seconds)."""


Around: TypeAlias = Callable[[Call], AbstractContextManager[object]]
"""Returns the context manager of a call."""
Failed: TypeAlias = Callable[[object, Exception], None]
"""Counts an exception of an observer."""


def around(observers: Iterable[object], failed: Failed) -> Around | None:
    """Return the function that makes the context manager of a call; None if no observer has `around`."""
    found = [(observer, method) for observer in observers if (method := getattr(observer, "around", None))]
    return partial(_CallScope, found, failed) if found else None


class _CallScope:
    """The context managers of all observers. An exception of an observer is counted and changes nothing."""

    __slots__ = ("_call", "_entered", "_failed", "_observers")

    def __init__(self, observers: list[tuple[object, Around]], failed: Failed, call: Call) -> None:
        self._observers, self._failed, self._call = observers, failed, call
        self._entered: list[tuple[object, AbstractContextManager[Any]]] = []

    def __enter__(self) -> Self:
        for observer, method in self._observers:
            try:
                scope = method(self._call)
                scope.__enter__()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the observer's own
                self._failed(observer, error)
            else:
                self._entered.append((observer, scope))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for observer, scope in reversed(self._entered):
            try:
                scope.__exit__(kind, error, trace)
            except Exception as raised:  # noqa: BLE001 - as above
                self._failed(observer, raised)

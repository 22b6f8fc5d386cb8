"""Facts: the one closed union that log, metrics, history, tracing and streams consume; and who receives them.

Facts are made once, at the place where the thing happened, and never changed. None carries prompts,
arguments or results: a fact may go to any log. The text of a model as it comes, TokenDelta, is therefore no Fact:
only who follows one run gets it, and no observer can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol, TypeAlias

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
    """Where it begins, or goes on."""
    dwell: float = 0.0
    """Seconds that it has been active in that state before."""
    elapsed: float = 0.0
    """Seconds that it has been active before."""


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
    """Name of the guard that allowed the edge, where it has one."""
    internal: bool = False
    """The edge stayed in its state: leave and enter hooks did not run."""
    verdict: Any = None
    """The guard verdict that ended the run, on the edge that ended it."""
    overhead: float | None = field(default=None, compare=False)
    """Seconds the kernel itself took for it, up to telling observers, without hooks and journal; None: not measured."""
    tokens: int = 0
    """What the work of `source` used, for graphs whose hooks leave a TransitionNote."""
    reason: str = ""
    """Why, in a few words, from there too."""


class TransitionNote(NamedTuple):
    """What is to be said of the stay in a state with the transition that ends it: put it into `run.writes.note`."""

    tokens: int = 0
    reason: str = ""
    seconds: float | None = None
    """How long it was, where whoever did the work knows better than the clock."""


@fact(frozen=True, slots=True)
class EventFailed:
    """An event that did not commit, or whose hook raised after that. `reason` is one of FAILURES."""

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
"""Why an event can fail: the closed label set of `transition_failures_total{reason}`."""


@fact(frozen=True, slots=True)
class GuardEvaluated:
    """An edge's guard was asked. `guard` is its name in the table, `result` is `allow`, `deny` or `error`."""

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
    """All budget and progress guards of one turn, asked together; the first refusal decides."""

    graph: str
    run_id: str
    state: str
    iteration: int
    verdicts: Sequence[Any]
    """The verdicts, each with ok, guard, observed, limit, detail."""


@fact(frozen=True, slots=True)
class OperationAttempt:
    """One try of an operation that may be tried again.

    `operation` is one of OPERATIONS; `outcome` is `ok`, `retry` (another try follows after `delay` seconds)
    or `exhausted`; `reason` is why it failed, from `errors.ERROR_KINDS` or `schema_invalid`.
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
    """One request to a model, tried or answered. `seconds` is the time of this attempt."""

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
    """Seconds until the first token, where the answer was streamed."""
    context_used: float | None = None
    """Share of the model's context that request and answer fill, where its size is known."""
    at: float = 0.0
    """When this attempt began (epoch seconds); 0 where nobody knows."""
    queued: float | None = None
    """Seconds that it waited for a rate limiter before that; they are not in `seconds`. None without one."""


@fact(frozen=True, slots=True)
class ToolExecution:
    """One tool call, by (iteration, position). `seconds` includes waiting for a slot only in `queued`."""

    graph: str
    run_id: str
    iteration: int
    position: int
    tool: str
    """The registered name, or `_unregistered`."""
    outcome: str
    """`ok`, `error`, `timeout`, `denied`, `invalid_args`, `duplicate_keys`, `unstable_args` or `cancelled`."""
    seconds: float
    queued: float = 0.0
    result_chars: int = 0
    cut: bool = False
    at: float = 0.0
    """When the tool began (epoch seconds), its wait for a slot over; 0 where none ran, or nobody knows."""


@fact(frozen=True, slots=True)
class JournalWrite:
    """Records went to the journal: outcome `ok`, or `io`, `locked`, `full`, `corrupt`, `other`.

    `operation` is `append`, or `create` for a run that the store refused to begin.
    """

    graph: str
    run_id: str
    backend: str
    operation: str
    records: int
    seconds: float
    outcome: str = "ok"


@fact(frozen=True, slots=True)
class RunParked:
    """The run left this process's hands without having ended: it waits for somebody, or was interrupted."""

    graph: str
    run_id: str
    state: str
    reason: str
    at: float


@fact(frozen=True, slots=True)
class RunCompleted:
    """The run reached a terminal state. The totals of the whole run stand here."""

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
    """The graph's own totals (for llm_loop: usage, tool calls, restarts, budgets used)."""
    error: BaseException | None = None
    verdict: Any = None


@fact(frozen=True, slots=True)
class RunAdmitted:
    """An engine began a run that it had queued for `waited` seconds."""

    graph: str
    run_id: str
    waited: float
    at: float


@fact(frozen=True, slots=True)
class AdmissionRejected:
    """An engine took a run not in. `reason` is one of REJECTIONS."""

    graph: str
    run_id: str
    reason: str
    at: float


REJECTIONS = ("queue_full", "draining", "closed")
"""Why a run can be refused: the queue is full, the engine stops, or an operator stopped admission."""


@fact(frozen=True, slots=True)
class RunRecovered:
    """A run that its last owner had left open was found in the journal. `outcome` is one of RECOVERIES."""

    graph: str
    run_id: str
    outcome: str
    at: float


RECOVERIES = ("resumed", "poison", "other_graph", "corrupt")
"""What became of a run that was found: it goes on, or why not."""


@fact(frozen=True, slots=True)
class RolledBack:
    """An effect was to be taken back. `outcome` is one of ROLLBACKS."""

    graph: str
    run_id: str
    outcome: str
    at: float


ROLLBACKS = ("undone", "already", "kept", "failed")
"""What became of it: taken back, found undone, kept because somebody changed it since, or the undo failed."""


@fact(frozen=True, slots=True)
class WorkAbandoned:
    """Host code did not end within the grace period after its cancellation. It may still run; nobody waits for it.

    `kind` is one of ABANDONED_KINDS; `name` is that of the tool, model, hook or stage.
    """

    graph: str
    run_id: str
    state: str
    kind: str
    name: str
    at: float


ABANDONED_KINDS = ("tool", "mcp", "model", "hook", "memory", "stage")
"""What can be abandoned: an MCP call is the tool of a server, a stage is what a host plugged into a graph of ours."""


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
    | RunRecovered
    | RolledBack
    | WorkAbandoned
)

_KINDS: dict[type, str] = {
    OperationAttempt: "OperationAttempt",
    ToolExecution: "ToolExecution",
    AdmissionRejected: "AdmissionRejected",
}
"""Facts whose kind in logs and in the output of commands is not the name of their class."""


def kind_of(fact: object) -> str:
    """Return the kind of a fact as logs and commands print it."""
    return _KINDS.get(type(fact), type(fact).__name__)


# ---- for those who follow one run ----


@fact(frozen=True, slots=True)
class TokenDelta:
    """A piece of the text that a model says right now, as it said it: the host's hooks have not seen it yet.

    `iteration` is that of the LLMCall that follows it. `attempt` counts the tries of one answer from 1: with a higher
    one the answer begins again, and what came with the lower one is void.
    """

    graph: str
    run_id: str
    iteration: int
    attempt: int
    text: str


@fact(frozen=True, slots=True)
class FactsDropped:
    """Here `count` facts are missing: nobody read them for so long that they were dropped. `run_id` is the stream's."""

    graph: str
    run_id: str
    count: int


Streamed: TypeAlias = Fact | TokenDelta | FactsDropped
"""What a stream yields."""
Follower: TypeAlias = Callable[[Streamed], None]
"""Hears all of a run and of the runs below it, as it happens. Must be quick, must not block and must not raise."""


class Observer(Protocol):
    """Receives every fact, in order, on the event loop. One that raises is counted and cannot fail a run.

    One that also has `observer_failed(observer)` is told which of them raised, each time. One with `hears(kind)` says
    for each class of facts what is called in place of `observe`, None where it has no use for them.
    """

    def observe(self, fact: Fact, /) -> None:
        """Take note. Must be quick and must not block."""
        ...

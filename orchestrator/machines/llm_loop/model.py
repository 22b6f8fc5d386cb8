"""States, events and context of the LLM loop. Plain data, so that a run can be stored and resumed.

The fields of the context that change in each turn are dataclasses without slots: of these a record has the changed
parts alone (`journal.context`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from orchestrator.kernel.graph import recorded_as
from orchestrator.kernel.value import value
from orchestrator.llm.message import NO_USAGE, Message, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.question import Question
from orchestrator_guards import TurnFingerprint, Verdict


class LoopState(StrEnum):
    """The eight states."""

    INIT = "init"
    AWAIT_LLM = "await_llm"
    EVALUATE_RESPONSE = "evaluate_response"
    PROCESS_TOOLS = "process_tools"
    UPDATE_BUDGETS = "update_budgets"
    HANDLE_COMPLETION = "handle_completion"
    FINALIZE = "finalize"
    TERMINATE_ERROR = "terminate_error"


class LoopEvent(StrEnum):
    """The eleven events."""

    START_LOOP = "start_loop"
    LLM_RESPONSE = "llm_response"
    RESPONSE_NO_TOOL = "response_no_tool"
    RESPONSE_WITH_TOOLS = "response_with_tools"
    TOOLS_EXECUTED = "tools_executed"
    BUDGET_OK = "budget_ok"
    BUDGET_EXCEEDED = "budget_exceeded"
    RESTART_LOOP = "restart_loop"
    COMPLETION_RETRY = "completion_retry"
    COMPLETION_SUCCESS = "completion_success"
    FAILURE = "failure"


@recorded_as("Below")
@dataclass(slots=True)
class ChildUsage:
    """Usage of the runs of agents among a run's tools, including all their child runs."""

    usage: Usage = NO_USAGE
    before: Usage = NO_USAGE
    """The part of `usage` from earlier turns: after a crash only the runs of the last turn are looked up."""


@recorded_as("Spent")
@dataclass
class RunUsage:
    """Resources that the run has used so far. Never reset: a restart gives nothing back."""

    usage: Usage = NO_USAGE
    """Usage of the run's own requests to the model."""
    below: ChildUsage | None = None
    """None if the run has called no agent."""
    seconds: float = 0.0
    tool_calls: int = 0
    retries: int = 0
    restarts: int = 0
    compactions: int = 0
    by_tool: dict[str, int] = field(default_factory=dict)
    """Folded tool name -> calls that ran."""
    largest_answer: int = field(default=0, metadata={"fingerprint": None})
    """Output tokens of the longest answer so far, used as an estimate for a lost answer."""
    largest_cost: int = field(default=0, metadata={"fingerprint": None})
    """Cost of the most expensive answer so far, in millionths of the currency."""
    fastest_rate: float = field(default=0.0, metadata={"fingerprint": None})
    """Output tokens a second of the fastest answer so far, used as an estimate for an interrupted request."""

    @property
    def total(self) -> Usage:
        """Usage of the run and all its child runs, which its limits and its result count."""
        return self.usage if self.below is None else self.usage + self.below.usage

    def add_work(self, other: RunUsage) -> None:
        """Add the work of a child run that is part of this one. Its tokens and cost are in `below` already."""
        self.tool_calls += other.tool_calls
        self.retries += other.retries
        self.restarts += other.restarts
        self.compactions += other.compactions
        for tool, calls in other.by_tool.items():
            self.by_tool[tool] = self.by_tool.get(tool, 0) + calls


@recorded_as("Success")
class RepeatedSuccess(NamedTuple):
    """A successful call and its number of consecutive executions with the same result."""

    call: str
    """Digest of tool and arguments."""
    result: str
    """Its result; the digest of a long one."""
    times: int


@dataclass
class Progress:
    """State of the progress guards. A restart clears it."""

    error_streaks: dict[str, int] = field(default_factory=dict)
    """Folded tool name -> consecutive errors."""
    successes: dict[str, RepeatedSuccess] = field(default_factory=dict)
    """Folded tool name -> its last successful call."""
    expected: TurnFingerprint | None = field(
        default=None, metadata={"fingerprint": ("expected", "Turn | None")}
    )
    """The turn that would extend a stall: its calls are not run again."""
    model_retries: dict[str, int] = field(default_factory=dict, metadata={"fingerprint": None})
    """Folded tool name -> consecutive turns in which it asked the model to try again."""
    warning: str = ""
    """Warning for the model before its next turn."""


@dataclass
class Completion:
    """The attempts at a usable final answer."""

    retries: int = 0
    mark: int = -1
    """Index of the unusable answer that the next feedback replaces, or -1."""
    issue: str = ""
    """The reason why an output validator refused the answer of the wrap-up turn, or an incomplete one."""
    output: Any = field(default=None, metadata={"fingerprint": None})
    """The output as JSON if a validator changed it, else None."""
    incomplete: str = field(default="", metadata={"fingerprint": None})
    """`truncated`, `filtered` or `refused` if `LoopContext.output` is an incomplete free text. Read from the answer."""
    reason = ""
    """`guardrail` if one requested the last answer again. No field: it costs each turn, and a resumed run has none."""


@dataclass
class ContextUse:
    """Use of the model's context window."""

    tokens: int = 0
    """Input and output tokens of the last reply."""
    limit: int = 0
    warned: int = 0
    """Number of warning thresholds passed since the last compaction."""
    compacted_at: int = -1_000_000
    """Iteration of the last compaction."""


@recorded_as("Ledger")
@dataclass(slots=True)
class CallLedger:
    """State of the calls of one turn besides their results. Restored from records, by position."""

    admitted: dict[int, Any] = field(default_factory=dict, compare=False, metadata={"fingerprint": None})
    """The `AdmittedCall` of each call; made again after a restore."""
    asked: dict[int, Question] = field(default_factory=dict)
    """Calls that wait for a person; their results are provisional."""
    canonical: dict[int, ToolCall] = field(
        default_factory=dict, metadata={"fingerprint": ("edited", "dict[int, ToolCall]")}
    )
    """Calls in the form in which they run, if that differs from the model's own text."""
    approved: dict[int, str] = field(default_factory=dict, metadata={"fingerprint": None})
    """Calls that a person approved, with the digest under which they were announced."""
    changed: frozenset[int] = field(default=frozenset(), metadata={"fingerprint": None})
    """Interrupted calls whose tool has another schema, effect or approval than when they were announced."""
    started: dict[int, str] = field(default_factory=dict)
    """Calls that may have started, with the effect of their tools. Without a result it is unknown whether they
    happened."""
    began: dict[int, float] = field(default_factory=dict, metadata={"fingerprint": None})
    """Start (epoch seconds) of each of several calls of a turn that were started in this process."""
    noted: frozenset[int] = field(default=frozenset(), metadata={"fingerprint": ("noted", "set[int]")})
    """Calls whose result is in the journal."""
    told: frozenset[int] = field(default=frozenset(), metadata={"fingerprint": ("told", "set[int]")})
    """Calls that were published to observers."""
    decided: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key -> the answer that counted."""
    inputs: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict, metadata={"fingerprint": None})
    """The input that people have given for calls, as records (`CallInput.of`)."""


@value(frozen=True, slots=True)
class TurnDecision:
    """The guards allowed another turn: their verdict, the limits, and the usage at that time."""

    verdict: Verdict
    limits: Limits
    iteration: int
    used: Usage
    seconds: float
    restart: bool = False
    """The loop restarts with that turn."""


@dataclass(slots=True)
class LoopContext:
    """The data of a run of the loop. `messages` shrinks only by restart, compaction and retries."""

    messages: list[Message]
    limits: Limits
    base: int
    """Messages at the start of the run: instructions, memory, history, prompt."""
    recalled: tuple[int, int] = (0, 0)
    """Span of the messages that memory inserted: the model sees them, but they are not part of the conversation."""
    iteration: int = 0
    """Answers of the model so far, over the whole run."""
    response: Response | None = None
    """The answer in progress."""
    results: list[Any] = field(default_factory=list)
    """One `ToolResult` (or None while it runs) for each call of that answer."""
    ledger: CallLedger = field(default_factory=CallLedger)
    spent: RunUsage = field(default_factory=RunUsage)
    progress: Progress = field(default_factory=Progress)
    turns: tuple[TurnFingerprint, ...] = field(default=(), metadata={"fingerprint": ("turns", "deque[Turn]")})
    """Fingerprints of the last turns, for the progress guards. A restart clears it."""
    completion: Completion = field(default_factory=Completion)
    context: ContextUse = field(default_factory=ContextUse)
    verdict: Verdict | None = None
    """The refusal that ends the run, or starts its wrap-up."""
    wrapping_up: bool = False
    """The last turn: no tools, and no further request after any answer."""
    decision: TurnDecision | None = field(default=None, metadata={"fingerprint": None})
    """The decision of a hook for the edge that it chose; the guard of the edge reads it. Not stored in any record."""
    output: Any = None
    tool_errors: tuple[Any, ...] = field(default=(), metadata={"fingerprint": None})
    """The last exceptions of tools, each a `ToolError`; restored from the records of their calls."""
    fault: str | None = None
    """Reason of a failure, set at the place of the error if that is more specific than the error's type."""
    degraded: bool = False
    """The memory store failed after the answer was complete."""
    remembered: bool = False
    """Memory has stored the exchange, according to a record: a resumed run must not store it again."""
    conversation_id: str | None = None
    deadline: float = 0.0
    """Seconds after the start by which the caller wants the run to end; 0 means none."""

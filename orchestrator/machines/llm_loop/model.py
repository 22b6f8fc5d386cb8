"""States, events and context of the LLM loop. Plain data: it can be stored, and a run can go on from it.

The parts of the context that change in each turn have no slots: the journal compares and copies the dict of such an
instance in one step (`journal.snapshot`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from orchestrator.kernel.value import value
from orchestrator.llm.message import NO_USAGE, Message, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator_guards import DIGEST_VERSION, Turn, Verdict


class State(StrEnum):
    """Seed 003's eight states."""

    INIT = "init"
    AWAIT_LLM = "await_llm"
    EVALUATE_RESPONSE = "evaluate_response"
    PROCESS_TOOLS = "process_tools"
    UPDATE_BUDGETS = "update_budgets"
    HANDLE_COMPLETION = "handle_completion"
    FINALIZE = "finalize"
    TERMINATE_ERROR = "terminate_error"


class Event(StrEnum):
    """Seed 003's ten events and the eleventh of its code, `restart_loop`."""

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


@dataclass(slots=True)
class Below:
    """What the runs of agents among a run's tools have used, all that is below them included."""

    usage: Usage = NO_USAGE
    before: Usage = NO_USAGE
    """The part of it that earlier turns account for: after a crash only the last turn's runs are looked up."""


@dataclass
class Spent:
    """What the run has used so far. Never reset: a restart does not give anything back."""

    usage: Usage = NO_USAGE
    """Of its own requests to the model."""
    below: Below | None = None
    """None: it has called no agent."""
    seconds: float = 0.0
    tool_calls: int = 0
    retries: int = 0
    restarts: int = 0
    compactions: int = 0
    by_tool: dict[str, int] = field(default_factory=dict)
    """Folded tool name -> calls that ran."""
    largest_answer: int = field(default=0, metadata={"fingerprint": None})
    """Output tokens of the longest answer so far: those of an answer that is lost are estimated by it."""
    largest_cost: int = field(default=0, metadata={"fingerprint": None})
    """Cost of the dearest answer so far, in millionths of the currency."""

    @property
    def total(self) -> Usage:
        """What the run and all below it have used: what its limits and its result count."""
        return self.usage if self.below is None else self.usage + self.below.usage


class Success(NamedTuple):
    """A successful call and how often in a row it was made with the same result."""

    call: str
    """Digest of tool and arguments."""
    result: str
    times: int


@dataclass
class Progress:
    """What the progress guards look at. A restart empties it."""

    error_streaks: dict[str, int] = field(default_factory=dict)
    """Folded tool name -> consecutive errors."""
    successes: dict[str, Success] = field(default_factory=dict)
    """Folded tool name -> the call it last succeeded with."""
    expected: Turn | None = None
    """The turn that would make a stall longer: its calls are not run again."""
    warning: str = ""
    """What the model is told before its next turn."""


@dataclass
class Completion:
    """The attempts at a usable final answer."""

    retries: int = 0
    mark: int = -1
    """Index of the unusable answer that the next feedback replaces, or -1."""
    issue: str = ""


@dataclass
class ContextUse:
    """How full the model's context is."""

    tokens: int = 0
    """Input and output tokens of the last reply."""
    limit: int = 0
    warned: int = 0
    """How many of the warning thresholds were passed since the last compaction."""
    compacted_at: int = -1_000_000
    """Iteration of the last compaction."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked about one call. The answer must name this digest."""

    key: str
    """`TURN:POSITION`."""
    tool: str
    arguments: str
    """Canonical JSON text: checked and coerced, with defaults, in the order of the schema. The tool receives this."""
    digest: str
    """SHA-256 (hex) of what is to be approved (see `guards.approval`)."""
    why: str
    """One of WHY."""
    expires_at: float = 0.0
    """Epoch seconds after which nobody can say yes any more; 0 is never."""
    verdict: Verdict | None = field(default=None, metadata={"fingerprint": None})
    """Why the tool's approval rule asks, where it returned a Verdict: guard, observed, limit, detail."""
    notice: str = field(default="", metadata={"fingerprint": None})
    """A sentence that the person must read: the approval rule failed, so the question is asked to be safe."""
    version: int = field(default=DIGEST_VERSION, metadata={"fingerprint": None})
    """Of the digest. A question with an older one is asked again when the run is resumed."""
    epoch: int = field(default=0, metadata={"fingerprint": None})
    """Of the lease under which it was asked; part of the digest of a question about an interrupted call."""

    @classmethod
    def from_record(cls, key: str, tool: str, said: str, body: Mapping[str, Any]) -> Question:
        """Read the body of an `asked` record. `said` is the model's own text, for records that do not repeat it."""
        verdict = body.get("verdict")
        return cls(
            key,
            tool,
            body.get("arguments") or said,
            str(body.get("digest", "")),
            str(body.get("why", "approval")),
            float(body.get("expires_at") or 0.0),
            Verdict(**verdict) if verdict else None,
            str(body.get("notice", "")),
            int(body.get("version", 1)),
            int(body.get("epoch", 0)),
        )

    def record(self, said: str) -> dict[str, Any]:
        """Return the body of its `asked` record. `said` is the model's own text, which is not repeated."""
        body: dict[str, Any] = {
            "key": self.key,
            "tool": self.tool,
            "digest": self.digest,
            "version": self.version,
            "why": self.why,
        }
        if self.arguments != said:
            body["arguments"] = self.arguments
        if self.verdict is not None:
            body["verdict"] = self.verdict._asdict()
        for name in ("expires_at", "notice", "epoch"):
            if value := getattr(self, name):
                body[name] = value
        return body


WHY = ("approval", "unknown_effect", "undo_failed")
"""The tool wants approval; a crash left open whether the call happened; so, and taking it back failed."""


@dataclass(slots=True)
class Ledger:
    """What is known of the calls of one turn beside their results. Rebuilt from records, by position."""

    asked: dict[int, Question] = field(default_factory=dict)
    """Calls that wait for a person; their results are provisional."""
    canonical: dict[int, ToolCall] = field(
        default_factory=dict, metadata={"fingerprint": ("edited", "dict[int, ToolCall]")}
    )
    """Calls in the form in which they run, where that is not the model's own text."""
    approved: dict[int, str] = field(default_factory=dict, metadata={"fingerprint": None})
    """Calls that a person let run, with the digest under which they were announced."""
    started: dict[int, str] = field(default_factory=dict)
    """Calls that may have begun, with the effect of their tools: without a result, nobody knows what came of them."""
    noted: set[int] = field(default_factory=set)
    """Calls whose result is with the journal."""
    told: set[int] = field(default_factory=set)
    """Calls that observers were told of."""
    decided: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key -> the answer that counted."""


@value(frozen=True, slots=True)
class TurnDecision:
    """The guards allowed another turn: their verdict, under which limits, and what the run had used by then."""

    verdict: Verdict
    limits: Limits
    iteration: int
    used: Usage
    seconds: float
    restart: bool = False
    """The loop starts over with that turn."""


@dataclass(slots=True)
class LoopContext:
    """Everything a run of the loop knows. `messages` only ever grows, but for restart, compaction and retries."""

    messages: list[Message]
    limits: Limits
    base: int
    """Messages the run started with: instructions, memory, history, prompt."""
    recalled: tuple[int, int] = (0, 0)
    """Span of those that memory put in: shown to the model, not part of the conversation."""
    iteration: int = 0
    """Answers of the model so far, over the whole run."""
    response: Response | None = None
    """The answer that is being worked on."""
    results: list[Any] = field(default_factory=list)
    """One `ToolResult` (or None, while it runs) for each call of that answer."""
    ledger: Ledger = field(default_factory=Ledger)
    spent: Spent = field(default_factory=Spent)
    progress: Progress = field(default_factory=Progress)
    turns: deque[Turn] = field(default_factory=deque)
    """Fingerprints of the last turns, for the progress guards. A restart empties it."""
    completion: Completion = field(default_factory=Completion)
    context: ContextUse = field(default_factory=ContextUse)
    verdict: Verdict | None = None
    """The refusal that ends the run, or that it wraps up for."""
    wrapping_up: bool = False
    """The last turn: no tools, and no further request whatever it answers."""
    decision: TurnDecision | None = field(default=None, metadata={"fingerprint": None})
    """What a hook found out for the edge that it chose: the guard of the edge reads it. No record has it."""
    output: Any = None
    fault: str | None = None
    """Reason of a failure where the place it happened in knows better than the error's type."""
    degraded: bool = False
    """The memory store failed after the answer was complete."""
    remembered: bool = False
    """Memory has the exchange, as a record tells: a run that is resumed after that must not store it again."""
    conversation_id: str | None = None
    deadline: float = 0.0
    """Seconds after its start by which the caller wants the run to have ended; 0 is none."""

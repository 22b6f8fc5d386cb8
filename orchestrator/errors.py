"""Every error of the library, one tree. This module imports nothing.

OrchestratorError
├── GraphError              a table, or the hooks bound to it, cannot work; lists every problem
├── ConfigError             a limit, setting or argument is out of range (also a ValueError)
├── EventError              an event was not carried out; the state is what it was
│   ├── InvalidEvent        known event, no edge from this state
│   ├── UnknownEvent        the event is in no edge of the graph
│   ├── Refused             a guard, before_ or leave_ hook said no
│   ├── NoTransition        strict mode: the edge stays in its state
│   ├── UnhandledEventError a typed machine has no edge for the event, or its guards all said no
│   └── InTransition        another event of this run is in flight
└── RunError                a run could not start, go on or end well
    ├── RunExists           the run_id is taken: resume it or choose another
    ├── RunUnknown          no run of that id
    ├── ContextInUse        two runs at once would change one context
    ├── StateTimeout        a state lasted longer than its dwell limit
    ├── DeadlineExceeded    the run's own deadline passed
    ├── CancelRequested     somebody asked this run to stop
    │   └── RejectRequested a person ended it instead of answering
    ├── AnswerRefused       an approval or another answer that no question waits for
    │   └── RunOver         the run has ended: it takes no request at all
    ├── Suspended           the run goes no further here; resume it when you want
    ├── NotAdmitting        an engine takes no new runs now
    ├── Overloaded          an engine has as many runs in its queue as it may
    ├── OtherGraph          the stored run belongs to another version of its graph
    ├── LLMError            a model call failed, classified by ErrorKind
    ├── CompletionError     the model's final answer stayed unusable
    ├── LimitReached        a guard refused where only a failure can follow
    ├── JournalError        a record could not be made durable, or not be trusted
    │   ├── Held            another living owner holds the run
    │   ├── Fenced          somebody else owns the run now; this owner must vanish
    │   ├── StoreDown       the store cannot be reached, or was poisoned by an I/O error
    │   ├── Corrupt         what was stored is not what was written
    │   └── TooNew          written by a newer version of this library
    └── RunStopped          raise_for_outcome(): one class for each outcome but `completed`
        ├── RunPartial ├── BudgetExceeded ├── NoProgress
        └── RunCancelled ├── RunRejected └── RunFailed
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class OrchestratorError(Exception):
    """Root of every error that this library raises on purpose."""


class GraphError(OrchestratorError):
    """A graph or its hooks cannot be built; `problems` has all of them, not just the first."""

    def __init__(self, graph: str, problems: Sequence[object]) -> None:
        self.graph = graph
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        noun = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(f"{graph}: {len(self.problems)} {noun}{listed}")


class ConfigError(OrchestratorError, ValueError):
    """A limit, setting or argument is not acceptable; the message names what is."""


class EventError(OrchestratorError):
    """An event was not carried out. `graph`, `state` and `event` are the names involved."""

    def __init__(self, message: str, *, graph: str, state: str, event: str) -> None:
        super().__init__(f"{graph}: {message}" if graph else message)  # a hook knows no graph
        self.graph = graph
        self.state = state
        self.event = event


class InvalidEvent(EventError):
    """The event exists but has no edge from the present state; `allowed` lists those that have."""

    def __init__(self, *, graph: str, state: str, event: str, allowed: Sequence[str]) -> None:
        can = ", ".join(repr(str(name)) for name in allowed) or "nothing"
        super().__init__(
            f"event {str(event)!r} is not possible in state {str(state)!r}; possible: {can}",
            graph=graph,
            state=state,
            event=event,
        )
        self.allowed = tuple(allowed)


class UnknownEvent(EventError):
    """The event stands in no edge of the graph."""

    def __init__(self, *, graph: str, state: str, event: str, known: Sequence[str]) -> None:
        names = ", ".join(repr(str(name)) for name in known)
        super().__init__(
            f"unknown event {str(event)!r}; known: {names}", graph=graph, state=state, event=event
        )
        self.known = tuple(known)


class Refused(EventError):
    """A guard or a `before_`/`leave_` hook said no. Hooks raise `Refused("why")`; the driver adds the rest."""

    def __init__(
        self, reason: str, *, graph: str = "", state: str = "", event: str = "", verdict: Any = None
    ) -> None:
        self.reason = reason
        self.verdict = verdict
        where = f"event {str(event)!r} in state {str(state)!r} refused: " if event else ""
        super().__init__(f"{where}{reason}", graph=graph, state=state, event=event)


class NoTransition(EventError):
    """Strict mode only: the event ran its hooks but its edge stays in the state (looplab's error)."""

    def __init__(self, *, graph: str, state: str, event: str) -> None:
        super().__init__(
            f"event {str(event)!r} stays in state {str(state)!r}", graph=graph, state=state, event=event
        )


class InTransition(EventError):
    """Another event of the same run is being carried out."""

    def __init__(self, *, graph: str, state: str, event: str) -> None:
        super().__init__(
            f"event {str(event)!r} refused: another event is in flight in state {str(state)!r}",
            graph=graph,
            state=state,
            event=event,
        )


class RunError(OrchestratorError):
    """A run could not start, go on, or end well."""


class RunExists(RunError):
    """The run_id is known already."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"run {run_id!r} exists; call resume({run_id!r}) to go on with it, or choose another run_id"
        )
        self.run_id = run_id


class RunUnknown(RunError):
    """No live run of this process, or no run of this journal, has this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run {run_id!r} is known here")
        self.run_id = run_id


class StateTimeout(RunError):
    """A state lasted longer than its dwell limit (seconds)."""

    def __init__(self, state: str, seconds: float) -> None:
        super().__init__(f"state {state!r} lasted longer than its limit of {seconds:g} s")
        self.state = state
        self.seconds = seconds


class DeadlineExceeded(RunError):
    """The run's own deadline passed (seconds from its start)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the run lasted longer than its limit of {seconds:g} s")
        self.seconds = seconds


class CancelRequested(RunError):
    """Somebody asked this run to stop; `reason` is `caller` or `shutdown`."""

    def __init__(self, reason: str = "caller", detail: str = "") -> None:
        super().__init__(f"cancelled by {reason}" + (f": {detail}" if detail else ""))
        self.reason = reason


class RejectRequested(CancelRequested):
    """A person, asked about a call, ended the whole run."""

    def __init__(self, by: str, detail: str = "") -> None:
        super().__init__("operator", detail)
        self.args = (f"rejected by {by}" + (f": {detail}" if detail else ""),)
        self.by = by


class AnswerRefused(RunError):
    """An answer that does not count: `kind` says why; `earlier` has `by`, `decision` and `at` of the one that does."""

    def __init__(self, run_id: str, why: str, kind: str = "unasked", earlier: Any = None) -> None:
        super().__init__(f"run {run_id!r} takes no such answer: {why}")
        self.run_id = run_id
        self.kind, self.earlier = kind, earlier  # unasked, several, stale, edit, answered or over


class RunOver(AnswerRefused):
    """The run has ended, so it takes no request any more; `outcome` is how."""

    def __init__(self, run_id: str, outcome: str, why: str = "", earlier: Any = None) -> None:
        super().__init__(run_id, outcome, "over", earlier)
        self.args = (f"run {run_id!r} is over: {outcome}{why and f'; {why}'}",)
        self.outcome = outcome


class Suspended(RunError):
    """The run was left where it is, durable, before its end."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} is suspended ({reason}); call resume({run_id!r}) to go on with it")
        self.run_id = run_id
        self.reason = reason


class NotAdmitting(RunError):
    """An engine takes no new runs, or let one go that it had not begun; the journal knows nothing of it."""

    def __init__(self, engine: str, why: str, then: str) -> None:
        super().__init__(f"engine {engine!r} does not take this run: {why}; {then}")
        self.engine = engine
        self.why = why


class Overloaded(RunError):
    """The queue of an engine is full; the journal knows nothing of the run."""

    def __init__(self, engine: str, queue: int, slots: int) -> None:
        super().__init__(
            f"the queue of engine {engine!r} is full: {queue} runs wait for its {slots} slots; submit again later, "
            "submit elsewhere, or give the engine more slots or a longer queue"
        )
        self.engine = engine
        self.queue = queue
        self.slots = slots


class OtherGraph(RunError):
    """A stored run was made with another version of its graph or context."""

    def __init__(self, run_id: str, graph: str, made: str, have: str) -> None:
        super().__init__(
            f"run {run_id!r} was made with another version of graph {graph!r} ({made[:12]}, here it is "
            f"{have[:12]}): resume it with the version that made it, or give Orchestrator a migration for it"
        )
        self.run_id = run_id
        self.made = made
        self.have = have


class LLMError(RunError):
    """A model call failed. Classified by type, status and code, never by its text.

    `kind` is one of ERROR_KINDS; `status` the HTTP status or None; `retry_after` seconds or None; `partial` is what
    a stream had brought before it was cut. `retryable` is what the provider said of trying again, and stands above
    what `kind` and `status` say; None where it said nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "other",
        status: int | None = None,
        retry_after: float | None = None,
        partial: str = "",
        retryable: bool | None = None,
    ) -> None:
        if kind not in ERROR_KINDS:
            raise ConfigError(f"unknown error kind {kind!r}; known: {', '.join(sorted(ERROR_KINDS))}")
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.retry_after = retry_after
        self.partial = partial
        self.retryable = retryable


ERROR_KINDS = frozenset(
    (
        "rate_limited",
        "timeout",
        "server_error",
        "client_error",
        "auth",
        "content_filter",
        "context_length",
        "connection",
        "malformed",
        "other",
    )
)
"""The closed taxonomy of model failures; also the label values of `llm_requests_total{outcome}`."""


class CompletionError(RunError):
    """The final answer stayed unusable after every completion retry; `issue` says what was wrong."""

    def __init__(self, issue: str, attempts: int) -> None:
        super().__init__(f"no usable final answer after {attempts} retries: {issue}")
        self.issue = issue
        self.attempts = attempts


class LimitReached(RunError):
    """A guard refused another turn in a state from which only `failure` leads on; `verdict` is its refusal."""

    def __init__(self, verdict: Any) -> None:
        super().__init__(verdict.explain())
        self.verdict = verdict


class JournalError(RunError):
    """A record could not be made durable, so the step it announces did not happen."""

    kind: str = "other"
    """Why, in one word: io, locked, full, corrupt or other."""


class Held(JournalError):
    """Another living owner holds the run; `warning` says so where it has missed heartbeats."""

    def __init__(self, run_id: str, owner: str, warning: str = "") -> None:
        then = f"wait until it is let go, cancel the run, or look: `orchestrator runs show {run_id}`"
        super().__init__(f"run {run_id!r} is held by {owner}; {warning or then}")
        self.run_id = run_id
        self.owner = owner
        self.warning = warning


class Fenced(JournalError):
    """The lease is out of date: somebody else claimed the run. Never tried again; this owner must vanish."""

    def __init__(self, run_id: str, epoch: int) -> None:
        super().__init__(f"run {run_id!r} was taken over: epoch {epoch} is out of date")
        self.run_id = run_id
        self.epoch = epoch


class StoreDown(JournalError):
    """The store cannot be reached, is full or read-only, or an I/O error poisoned it."""

    def __init__(self, why: str, kind: str = "other") -> None:
        super().__init__(why)
        self.kind = kind


class Corrupt(JournalError):
    """What was read is not what was written; nothing of it is used."""

    kind = "corrupt"


class TooNew(JournalError):
    """The store was written by a newer version of this library."""


class RunStopped(RunError):
    """Raised by `Result.raise_for_outcome()`; `result` is the whole result, history included."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class RunPartial(RunStopped):
    """A limit ended the run; a wrap-up turn gave a partial answer."""


class BudgetExceeded(RunStopped):
    """A budget is used up; `result.verdict` names it."""


class NoProgress(RunStopped):
    """The run repeated itself; `result.verdict` explains how."""


class RunCancelled(RunStopped):
    """The run was cancelled on request."""


class RunRejected(RunStopped):
    """A person ended the run."""


class RunFailed(RunStopped):
    """The run failed; `__cause__` is the first error."""


# ---- installation ----


class MissingExtra(ImportError):
    """A package of an extra is not installed; the message names the install line."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'fsm-orchestrator[{extra}]'", name=package)

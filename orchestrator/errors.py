"""Define every error of the library in one tree. This module imports nothing.

OrchestratorError
├── GraphError              a graph or its hooks cannot be built; lists every problem
├── ModelRetry              raised by tools and output validators: ask the model again
├── ConfigError             a limit, setting or argument is out of range (also a ValueError)
├── EventError              an event was not carried out; the state has not changed
│   ├── InvalidEvent        known event, no edge from this state
│   ├── UnknownEvent        no edge of the graph has the event
│   ├── Refused             a guard, before_ or leave_ hook refused the event
│   ├── NoTransition        strict mode: the edge stays in its state
│   ├── UnhandledEventError a typed machine has no edge for the event, or its guards refused all of them
│   └── InTransition        another event of this run is in flight
└── RunError                a run could not start, continue or complete
    ├── RunExists           the run_id is taken: resume the run or choose another id
    ├── RunUnknown          no run has that id
    ├── ContextInUse        two runs would change one context at the same time
    ├── StateTimeout        a state lasted longer than its dwell limit
    ├── DeadlineExceeded    the run's own deadline passed
    ├── CancelRequested     a cancellation of this run was requested
    │   └── RejectRequested a person ended the run instead of answering
    ├── AnswerRefused       no question waits for this approval or answer
    │   └── RunOver         the run has ended and accepts no request
    ├── Suspended           the run is suspended; resume it later
    ├── NotAdmitting        an engine accepts no new runs now
    ├── Overloaded          the queue of an engine is full
    ├── OtherGraph          the stored run belongs to another version of its graph
    ├── OtherAgent          the stored run belongs to an agent of another name
    ├── LLMError            a model call failed, classified by ErrorKind
    ├── ToolRaised          an exception of a tool ended the run, by the choice of the tool or the limits
    ├── CompletionError     the model's final answer stayed unusable
    ├── LimitReached        a guard refused in a state that can only fail
    ├── JournalError        a record could not be made durable, or cannot be trusted
    │   ├── Held            another living owner holds the run
    │   ├── Fenced          another owner took the run over; this owner must stop
    │   ├── StoreDown       the store cannot be reached, or was poisoned by an I/O error
    │   ├── Corrupt         the stored data is not the data that was written
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


def see_guide(topic: str) -> str:
    """Return the last part of a message, which names a guide; `topic` is one of `orchestrator docs`."""
    return f"see `orchestrator docs {topic}`"


class OrchestratorError(Exception):
    """Root of every error that this library raises on purpose."""


class GraphError(OrchestratorError):
    """A graph or its hooks cannot be built; `problems` lists every problem, not just the first."""

    def __init__(self, graph: str, problems: Sequence[object]) -> None:
        self.graph = graph
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        noun = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(f"{graph}: {len(self.problems)} {noun}{listed}\n{see_guide('machines')}")


class ConfigError(OrchestratorError, ValueError):
    """A limit, setting or argument is not acceptable; the message names the allowed values."""


class ModelRetry(OrchestratorError):
    """Raised by a tool or an output validator: the model reads the text and tries again."""


class ResultUnreadable(OrchestratorError):
    """Raised by a tool that did its work but has no result that can be read: the call counts as done.

    The model reads the reason, and that the tool ran. `result` is what there is instead of a result; its type and the
    start of its `repr` are stored with the call, unless it is None.

    Example:
        >>> raise ResultUnreadable("the receipt is not valid XML", b"<receipt")
        Traceback (most recent call last):
        orchestrator.errors.ResultUnreadable: the receipt is not valid XML
    """

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class EventError(OrchestratorError):
    """An event was not carried out; `graph`, `state` and `event` name the place."""

    def __init__(self, message: str, *, graph: str, state: str, event: str) -> None:
        super().__init__(f"{graph}: {message}" if graph else message)  # a hook has no graph yet
        self.graph = graph
        self.state = state
        self.event = event


class InvalidEvent(EventError):
    """The event exists but has no edge from the present state; `allowed` lists the events that have one."""

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
    """No edge of the graph has the event; `known` lists the events of the graph."""

    def __init__(self, *, graph: str, state: str, event: str, known: Sequence[str]) -> None:
        names = ", ".join(repr(str(name)) for name in known)
        super().__init__(
            f"unknown event {str(event)!r}; known: {names}", graph=graph, state=state, event=event
        )
        self.known = tuple(known)


class Refused(EventError):
    """A guard or a `before_`/`leave_` hook refused the event. Hooks raise `Refused("why")`; the driver adds names."""

    def __init__(
        self, reason: str, *, graph: str = "", state: str = "", event: str = "", verdict: Any = None
    ) -> None:
        self.reason = reason
        self.verdict = verdict
        where = f"event {str(event)!r} in state {str(state)!r} refused: " if event else ""
        super().__init__(f"{where}{reason}", graph=graph, state=state, event=event)


class NoTransition(EventError):
    """Strict mode only: the event ran its hooks but its edge stays in the state."""

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
    """A run could not start, continue or complete."""


class RunExists(RunError):
    """The run_id is already taken."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"run {run_id!r} exists; choose another run_id, or continue this one where that is possible: by "
            f"resume({run_id!r}), or by run or stream with if_exists='resume'"
        )
        self.run_id = run_id


class RunUnknown(RunError):
    """No live run of this process, or no run of this journal, has this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r} in this process or in its journal")
        self.run_id = run_id


class StateTimeout(RunError):
    """A state lasted longer than its dwell limit (seconds)."""

    def __init__(self, state: str, seconds: float) -> None:
        super().__init__(f"state {state!r} lasted longer than its limit of {seconds:g} s")
        self.state, self.seconds = state, seconds


class DeadlineExceeded(RunError):
    """The run lasted longer than its own deadline (seconds from its start)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the run lasted longer than its limit of {seconds:g} s")
        self.seconds = seconds


class CancelRequested(RunError):
    """A cancellation of this run was requested; `reason` is `caller` or `shutdown`."""

    def __init__(self, reason: str = "caller", detail: str = "") -> None:
        super().__init__(f"cancelled by {reason}" + (f": {detail}" if detail else ""))
        self.reason = reason


class RejectRequested(CancelRequested):
    """A person rejected the whole run when asked about a call."""

    def __init__(self, by: str, detail: str = "") -> None:
        super().__init__("operator", detail)
        self.args = (f"rejected by {by}" + (f": {detail}" if detail else ""),)
        self.by = by


class AnswerRefused(RunError):
    """An answer does not count: `kind` is the reason; `earlier` has `by`, `decision` and `at` of the one that does."""

    def __init__(self, run_id: str, why: str, kind: str = "unasked", earlier: Any = None) -> None:
        super().__init__(f"run {run_id!r} refuses the answer: {why}; {see_guide('approvals')}")
        self.run_id, self.why = run_id, why
        self.kind, self.earlier = kind, earlier  # kind: unasked, several, stale, edit, answered or over


class RunOver(AnswerRefused):
    """The run has ended and accepts no more requests; `outcome` is its outcome."""

    def __init__(self, run_id: str, outcome: str, why: str = "", earlier: Any = None) -> None:
        super().__init__(run_id, outcome, "over", earlier)
        self.args = (f"run {run_id!r} has ended: {outcome}{why and f'; {why}'}",)
        self.outcome = outcome


class Suspended(RunError):
    """The run was suspended before its end; its records are durable."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} is suspended ({reason}); call resume({run_id!r}) to continue it")
        self.run_id, self.reason = run_id, reason


class NotAdmitting(RunError):
    """An engine accepts no new runs, or dropped a queued run before its start; the journal has no record of it."""

    def __init__(self, engine: str, why: str, then: str) -> None:
        super().__init__(f"engine {engine!r} does not accept this run: {why}; {then}; {see_guide('workers')}")
        self.engine, self.why = engine, why


class Overloaded(RunError):
    """The queue of an engine is full; the journal has no record of the run."""

    def __init__(self, engine: str, queue: int, slots: int) -> None:
        super().__init__(
            f"the queue of engine {engine!r} is full: {queue} runs wait for its {slots} slots; submit again later, "
            f"submit elsewhere, or give the engine more slots or a longer queue; {see_guide('workers')}"
        )
        self.engine, self.queue, self.slots = engine, queue, slots


class OtherGraph(RunError):
    """A stored run was made with another version of its graph or context."""

    def __init__(self, run_id: str, graph: str, made: str, have: str, difference: str = "") -> None:
        super().__init__(
            f"run {run_id!r} has another version of graph {graph!r} (fingerprint {made[:12]}, here {have[:12]})"
            f"{difference and f': {difference}'}; resume it with that version, or register a migration; "
            f"{see_guide('durability')}"
        )
        self.run_id, self.made, self.have, self.difference = run_id, made, have, difference


class OtherAgent(RunError):
    """A stored run belongs to agent `owner`, and this is agent `here`; an empty name means without a name."""

    def __init__(self, run_id: str, owner: str, here: str) -> None:
        started = f"agent {owner!r}" if owner else "an agent without a name"
        this = f"agent {here!r}" if here else "an agent without a name"
        super().__init__(
            f"run {run_id!r} belongs to {started}, and this is {this}: resume it with its own agent, or transfer it "
            f"with resume({run_id!r}, from_agent={owner!r})"
        )
        self.run_id, self.owner, self.here = run_id, owner, here


class LLMError(RunError):
    """A model call failed; the error is classified by type, status and code, never by its text.

    `kind` is one of ERROR_KINDS, `status` the HTTP status or None. `retry_after` is seconds that the server asked to
    wait, or None; `partial` is the text of a stream before it was cut. `retryable` is the provider's statement about a
    retry, which overrides `kind` and `status`; None without a statement. `sent` is False if the request never reached
    the server, so that it costs nothing. `request_id` is the server's name of the request, "" without one. `usage` is
    the Usage that the server reported of an answer that is none, None without one.
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
        sent: bool = True,
        request_id: str = "",
        usage: Any = None,
    ) -> None:
        if kind not in ERROR_KINDS:
            raise ConfigError(f"unknown error kind {kind!r}; known: {', '.join(sorted(ERROR_KINDS))}")
        super().__init__(message)
        self.kind, self.status = kind, status
        self.retry_after, self.retryable = retry_after, retryable
        self.partial = partial
        self.sent, self.request_id, self.usage = sent, request_id, usage


ERROR_KINDS = frozenset(("rate_limited", "timeout", "server_error", "client_error", "auth", "content_filter"))
ERROR_KINDS |= {"context_length", "connection", "malformed", "other"}
"""The closed taxonomy of model failures; also the label values of `llm_requests_total{outcome}`."""


class CompletionError(RunError):
    """The final answer stayed unusable after every completion retry; `issue` is the last problem."""

    def __init__(self, issue: str, attempts: int) -> None:
        super().__init__(f"no usable final answer after {attempts} retries: {issue}; {see_guide('agents')}")
        self.issue, self.attempts = issue, attempts


class ToolRaised(RunError):
    """An exception of a tool ended the run, as the tool's `errors` or `Limits.on_tool_error` demands.

    `tool` is its name, `kind` the class of the exception, `where` the file and line in the tool. `__cause__` is the
    exception, in the process of the call.
    """

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.tool, self.kind, self.where = error.tool, error.type, error.where


class LimitReached(RunError):
    """A guard refused another turn in a state that can only fail; `verdict` is its refusal."""

    def __init__(self, verdict: Any) -> None:
        super().__init__(verdict.explain())
        self.verdict = verdict


class GuardrailRefused(RunError):
    """A guardrail refused the input or the output; `verdict` is its refusal, `action` what that does to the run."""

    def __init__(self, verdict: Any, action: str) -> None:
        limit = f", limit {verdict.limit:g}" if verdict.limit else ""
        why = f": {verdict.detail}" if verdict.detail else ""
        super().__init__(f"guardrail {verdict.guard} refused (observed {verdict.observed:g}{limit}){why}")
        self.verdict, self.action = verdict, action


class JournalError(RunError):
    """A record could not be made durable, so the step that it announces did not happen."""

    kind: str = "other"
    """The reason in one word: io, locked, full, corrupt or other."""


class Held(JournalError):
    """Another living owner holds the run; `warning` reports heartbeats that it missed."""

    def __init__(self, run_id: str, owner: str, warning: str = "") -> None:
        then = f"wait until it is released, cancel the run, or inspect it: `orchestrator runs show {run_id}`"
        super().__init__(f"run {run_id!r} is held by {owner}; {warning or then}; {see_guide('durability')}")
        self.run_id, self.owner, self.warning = run_id, owner, warning


class Fenced(JournalError):
    """The lease is out of date: another owner claimed the run. Never retried; this owner must stop."""

    def __init__(self, run_id: str, epoch: int) -> None:
        why = f"another process has claimed it, and lease epoch {epoch} is out of date"
        super().__init__(f"run {run_id!r} cannot be continued here: {why}; {see_guide('durability')}")
        self.run_id, self.epoch = run_id, epoch


class StoreDown(JournalError):
    """The store cannot be reached, is full or read-only, or was poisoned by an I/O error."""

    def __init__(self, why: str, kind: str = "other") -> None:
        super().__init__(why)
        self.kind = kind


class Corrupt(JournalError):
    """The data that was read is not the data that was written; none of it is used."""

    kind = "corrupt"


class TooNew(JournalError):
    """The store was written by a newer version of this library."""


class RunStopped(RunError):
    """`Result.raise_for_outcome()` raises a subclass; `result` is the whole result with its history."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class RunPartial(RunStopped):
    """A limit ended the run, and a wrap-up turn gave a partial answer."""


class BudgetExceeded(RunStopped):
    """A budget is used up; `result.verdict` names it."""


class NoProgress(RunStopped):
    """The run repeated itself; `result.verdict` explains how."""


class RunCancelled(RunStopped):
    """The run was cancelled on request."""


class RunRejected(RunStopped):
    """A person rejected the run."""


class RunFailed(RunStopped):
    """The run failed; `__cause__` is the first error."""


class MissingExtra(ImportError):
    """A package of an extra is not installed; the message gives the install command."""

    def __init__(self, package: str, extra: str, guide: str = "") -> None:
        install = f"pip install 'fsm-orchestrator[{extra}]'"
        hint = guide and f"; {see_guide(guide)}"
        super().__init__(f"{package} is not installed: {install}{hint}", name=package)

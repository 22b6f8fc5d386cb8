"""What a listing says about a run beyond its head: its task, why it failed, and the calls that wait for a person.

An outline is read from an excerpt of the records, which is not verified. It informs a person who chooses a run; before
a decision counts, the whole run is read and verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from orchestrator.kernel.journal import Draft, Journal, RunHead
from orchestrator.kernel.redaction import scrub

Body = Mapping[str, Any]

LONGEST = 200
"""Most characters of a task."""
_TASKS = ("request", "prompt", "task", "query")
"""Fields in which the contexts of machines have the text that a person gave."""


class RunFailure(NamedTuple):
    """The error that failed a run."""

    type: str
    """Class of the exception."""
    message: str
    """Its text without probable secrets. It can have contents."""
    kind: str = ""
    """Kind of the model's error, one of errors.ERROR_KINDS."""
    status: int = 0
    """HTTP status; 0 without one."""
    request_id: str = ""
    where: str = ""
    """File and line."""
    state: str = ""
    """State of the run in which it happened."""
    turn: int = 0
    """Turn in which it happened, from 1; 0 if the machine has no turns."""
    attempt: int = 0
    """Number of the last attempt at the request, from 1; 0 if no request failed."""

    @classmethod
    def of(cls, error: Body, attempts: int = 0) -> Self:
        """Return it from the error of a record, and the number of attempts at the request that failed."""
        fields = error.get("fields") or {}
        return cls(
            type=str(error.get("type", "")),
            message=scrub(str(error.get("message", ""))),
            kind=str(fields.get("kind") or "") if error.get("is") == "LLMError" else "",
            status=int(fields.get("status") or 0),
            request_id=str(fields.get("request_id") or ""),
            where=str(error.get("where") or ""),
            state=str(error.get("state") or ""),
            # The record counts the answers: a request that failed has none.
            turn=int(error.get("iteration") or 0) + bool(attempts),
            attempt=attempts,
        )

    @property
    def facts(self) -> str:
        """The error without its text: type, kind, HTTP status, request id, file and line."""
        known = (
            self.kind,
            f"HTTP {self.status}" if self.status else "",
            f"request {self.request_id}" if self.request_id else "",
            self.where,
        )
        about = ", ".join(filter(None, known))
        return self.type + (f" ({about})" if about else "")

    @property
    def without_content(self) -> dict[str, str | int]:
        """The fields but the message, for listings, which show no contents."""
        return {name: value for name, value in self._asdict().items() if name != "message"}

    @property
    def what(self) -> str:
        """Kind or type, and HTTP status."""
        return (self.kind or self.type) + (f", HTTP {self.status}" if self.status else "")

    @property
    def place(self) -> str:
        """Where it happened: state, turn and attempt."""
        known = (
            self.state,
            f"turn {self.turn}" if self.turn else "",
            f"attempt {self.attempt}" if self.attempt else "",
        )
        return ", ".join(filter(None, known))


class WaitingCall(NamedTuple):
    """A call that waits for a person."""

    key: str
    tool: str
    why: str
    effect: str
    """Empty in records of earlier versions."""
    arguments: str
    """Canonical JSON. It is content."""
    expires_at: float
    """Epoch seconds; 0 means never."""


@dataclass(frozen=True, slots=True)
class RunOutline:
    """A run in a listing."""

    task: str = ""
    """First line of the text that a person gave, without probable secrets; "" if the excerpt does not have it. It is
    content.
    """
    turns: int = 0
    """Answers of the model, as far as the excerpt has them."""
    failure: RunFailure | None = None
    calls: Sequence[WaitingCall] = field(default=())

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> Self:
        """Read an excerpt of the records of a run (`Journal.excerpts`)."""
        task, turns = "", 0
        calls: list[WaitingCall] = []
        said: Sequence[Body] = ()
        for kind, body in drafts:
            turns = max(turns, _number(body.get("iteration")))
            if kind == "created":
                task = _task(body.get("context") or {})
            elif kind in {"transition", "context"}:
                said = _calls_in(body) or said
            elif kind == "asked":
                calls.append(_waiting(body))
        return cls(task, turns, failure_in(drafts), [_with_arguments(call, said) for call in calls])


def failure_in(drafts: Iterable[Draft]) -> RunFailure | None:
    """Return the last error in an excerpt of the records of a run."""
    failure = None
    for kind, body in drafts:
        if kind in {"transition", "context"} and "error" in body:
            failure = RunFailure.of(body["error"], len(body.get("attempts") or ()))
    return failure


async def read_outlines(journal: Journal, heads: Sequence[RunHead]) -> dict[str, RunOutline]:
    """Return the outline of each run. A run whose excerpt cannot be read has an empty one. Raises StoreDown."""
    found = await journal.excerpts([head.run_id for head in heads])
    return {head.run_id: _outline(head, found.get(head.run_id, ())) for head in heads}


def _outline(head: RunHead, drafts: Sequence[Draft]) -> RunOutline:
    try:
        outline = RunOutline.of(drafts)
    except (AttributeError, LookupError, TypeError, ValueError):  # records that the store has not verified
        return RunOutline()
    waits = [call for call in outline.calls if call.tool in head.waiting.split(", ")]
    has_failed = head.status == "ended" and head.outcome != "completed"
    return RunOutline(outline.task, outline.turns, outline.failure if has_failed else None, waits)


def _number(value: Any) -> int:
    return value if type(value) is int else 0


def request_of(context: Body) -> str:
    """Return the text that a person gave to a run, from the context of its first record, without probable secrets."""
    said = [one for one in context.get("messages") or () if one.get("role") == "user"]
    texts = [text_of(said[-1].get("content"))] if said else [context.get(name) for name in _TASKS]
    return scrub(next((text.strip() for text in texts if isinstance(text, str) and text.strip()), ""))


def _task(context: Body) -> str:
    return request_of(context).split("\n", 1)[0][:LONGEST].rstrip()


def text_of(content: Any) -> str:
    """Return the text of a message in OpenAI form; a part that is no text is its type in brackets."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "\n".join(
        str(part.get("text") or f"[{part.get('type', 'part')}]")
        for part in parts
        if isinstance(part, Mapping)
    )


def _calls_in(body: Body) -> Sequence[Body]:
    """Return the calls of the last message of the model that a record has."""
    messages = body.get("messages")
    added = messages.get("add") or () if isinstance(messages, Mapping) else ()
    return next((one["tool_calls"] for one in reversed(added) if one.get("tool_calls")), ())


def _waiting(body: Body) -> WaitingCall:
    return WaitingCall(
        str(body.get("key", "")),
        str(body.get("tool", "")),
        str(body.get("why", "approval")),
        str(body.get("effect") or ""),
        str(body.get("arguments") or ""),
        float(body.get("expires_at") or 0.0),
    )


def _with_arguments(call: WaitingCall, said: Sequence[Body]) -> WaitingCall:
    """Return a call with the arguments of the model's message, which its question does not repeat."""
    position = call.key.rpartition(":")[2]
    if call.arguments or not position.isdecimal() or int(position) >= len(said):
        return call
    made = said[int(position)]
    return call._replace(arguments=str((made.get("function") or made).get("arguments", "")))

"""Input from a person during a call: the requests of a tool, their check, and the answers that the next attempt reads.

A tool raises InputRequired. The run puts one question after the other and waits without a process; then the call runs
again, and `context.input` has the answers and the tool's own `state`. Requests and answers are in the journal, so the
call continues in another process too. A tool that waits for its answer in the same call was rejected: its process
would have to live for as long as a person thinks.

    SEAT = {"type": "object", "properties": {"seat": {"enum": ["window", "aisle"]}}, "required": ["seat"]}

    @tool(effect="idempotent")
    def book(context: ToolContext, flight: str) -> str:
        "Book a flight."
        answer = context.input.answers.get("seat")
        if answer is None:
            raise InputRequired({"seat": InputRequest("Which seat?", SEAT)})
        return f"booked {answer.content['seat']}" if answer.action == "accept" else "not booked"
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.llm.json_schema import UnusableSchema
from orchestrator.tools.argument import listed
from orchestrator.tools.input_form import canonical_text, form_faults, form_fields, form_values

InputAction: TypeAlias = Literal["accept", "decline", "cancel"]
"""A person gave the input, refused to give it, or did not answer in time."""


class PersonNeeded(OrchestratorError):
    """A call cannot continue without a person."""


class EffectUnknown(PersonNeeded):
    """Raised by a tool whose call may have run before it was interrupted: a person decides whether it runs again."""


@dataclass(frozen=True, slots=True)
class InputRequest:
    """One request to a person: the values of a form, or a visit to an address.

    Raises:
        ConfigError: The schema cannot be used, or describes no object.
    """

    message: str
    schema: Mapping[str, Any] | None = None
    """JSON schema of the object to fill in; None asks for a yes only."""
    url: str = ""
    """Address that the person opens by hand; it is shown and never opened."""

    def __post_init__(self) -> None:
        if self.schema is None:
            return
        if self.schema.get("type", "object") != "object":
            raise ConfigError(
                f"the schema of an input describes {self.schema['type']!r}; it must be an 'object'"
            )
        try:
            form_faults(self.schema, {})
        except UnusableSchema as error:
            raise ConfigError(f"the schema of an input cannot be used: {error}") from error

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the request: equal requests have the same one."""
        return hashlib.sha256(canonical_text(self.record()).encode(errors="surrogatepass")).hexdigest()

    def record(self) -> dict[str, Any]:
        """Return the request as JSON data."""
        made: dict[str, Any] = {"message": self.message}
        if self.schema is not None:
            made["schema"] = dict(self.schema)
        return made | {"url": self.url} if self.url else made

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> InputRequest:
        """Return the request of `record`."""
        return cls(str(record["message"]), record.get("schema"), str(record.get("url") or ""))


class InputRequired(PersonNeeded):
    """Raised by a tool that needs input from a person: the call runs again with the answers.

    Args:
        requests: Name -> request, asked one after the other; at least one.
        state: JSON data that the next attempt reads as `context.input.state`.
    """

    def __init__(self, requests: Mapping[str, InputRequest], state: Any = None) -> None:
        if not requests:
            raise ConfigError("InputRequired needs at least one request")
        self.requests = dict(requests)
        self.state = state
        super().__init__("the tool needs input from a person, who cannot be asked here")

    def record(self) -> dict[str, Any]:
        """Return the round as JSON data, for its first question."""
        requests = {name: one.record() for name, one in self.requests.items()}
        made = {"name": next(iter(requests)), "requests": requests}
        return made if self.state is None else made | {"state": self.state}


class InputAnswer(NamedTuple):
    """The answer to one request."""

    action: InputAction
    content: Mapping[str, Any] = {}
    """The values of the form; empty unless they were given."""


@dataclass(frozen=True, slots=True)
class CallInput:
    """The input that people have given for a call: `ToolContext.input`."""

    answers: Mapping[str, InputAnswer] = field(default_factory=dict)
    """Name -> answer, of the last InputRequired of the call."""
    state: Any = None
    """The `state` of that InputRequired."""
    earlier: tuple[tuple[str, InputAnswer], ...] = ()
    """Digest of the request and answer, of all requests of the call, in order."""
    again: bool = False
    """A person had the call run again after it was unknown whether it had taken effect."""

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> CallInput:
        """Return the input from the records of a call: `{"input", "answer"}` of each question, or `{"again"}`."""
        rounds = [one for one in records if "input" in one]
        if not rounds:
            return NO_INPUT
        names = rounds[-1]["input"]["requests"]
        last: dict[str, InputAnswer] = {}
        earlier = []
        for one in rounds:
            asked, answer = (
                one["input"],
                InputAnswer(one["answer"]["input"], one["answer"].get("values") or {}),
            )
            earlier.append((InputRequest.of(asked["requests"][asked["name"]]).digest, answer))
            last[asked["name"]] = answer
        answers = {name: last[name] for name in names if name in last}
        return cls(answers, rounds[-1]["input"].get("state"), tuple(earlier), "again" in records[-1])


NO_INPUT = CallInput()


def input_record(
    asked: Mapping[str, Any], answer: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the record of an answer to a question for the input of its call (`CallInput.of`), or None.

    `before` are the earlier records. `{"again"}` means that the call runs again after its effect was unknown.
    """
    if asked.get("input") and answer.get("input"):
        return {"input": asked["input"], "answer": answer}
    is_again = bool(before) and answer.get("decision") == "approve" and asked.get("why") != "approval"
    return {"again": True} if is_again else None


def next_request(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of the next question of a round after the question `asked`; None after the last one."""
    names = [*asked["requests"]]
    rest = names[names.index(asked["name"]) + 1 :]
    return {**asked, "name": rest[0]} if rest else None


def request_of(asked: Mapping[str, Any]) -> InputRequest:
    """Return the request of a question."""
    return InputRequest.of(asked["requests"][asked["name"]])


def read_answer(request: InputRequest, answer: Mapping[str, Any]) -> InputAnswer | str:
    """Return a person's answer as input, or the reason why it is none.

    `approve` accepts without values, `respond` with those of its content, `reject` declines. The content is a JSON
    object; for a form of one field the value is sufficient.
    """
    decision = answer.get("decision")
    if decision == "reject":
        return InputAnswer("decline")
    if answer.get("arguments") is not None:
        return "this question is about input, so the arguments of the call cannot be edited"
    if decision == "approve":
        values: Any = {}
    elif request.schema is None:
        return "this question has no form; approve or reject it"
    else:
        values = form_values(request.schema, str(answer.get("content") or ""))
    faults = [] if request.schema is None else form_faults(request.schema, values)
    if not isinstance(values, dict):
        return f"the answer must be a JSON object with {_fields(request.schema or {})}"
    if faults:
        return f"the answer does not fit the form: {listed(faults)}; it has {_fields(request.schema or {})}"
    return InputAnswer("accept", values)


def _fields(schema: Mapping[str, Any]) -> str:
    """Return the fields of a form as a clause."""
    names = [f"{one.name!r}" + ("" if one.is_required else " (optional)") for one in form_fields(schema)]
    return ", ".join(names) or "no fields"

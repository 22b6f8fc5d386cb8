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

The form of a request is the JSON schema of an object. Every place where a person answers reads its values here: the
commands, the prompt of a terminal, the console and the library.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.llm.json_schema import Check, SchemaFault, UnusableSchema, checker
from orchestrator.tools.argument import listed

MISSING: Final = object()
"""The value of a field that is left out."""

_TRUE, _FALSE = frozenset(("true", "yes", "y")), frozenset(("false", "no", "n"))
_DEFINITIONS: Final = ("$defs", "definitions")


class FormField(NamedTuple):
    """One field of a form, for a person."""

    name: str
    kind: str
    """Its JSON type; empty if the schema has none."""
    about: str
    """Title and description."""
    choices: tuple[str, ...]
    is_required: bool
    default: str | None = None
    """The default as text; None without one."""


def form_fields(schema: Mapping[str, Any]) -> list[FormField]:
    """Return the fields of a form in the order of its schema."""
    found = []
    for name in schema.get("properties") or {}:
        part = _part(schema, name)
        titles = [str(part[key]) for key in ("title", "description") if part.get(key)]
        is_required = name in (schema.get("required") or ())
        choices = tuple(_shown(value, title) for value, title in _choices(part))
        default = _shown(part["default"]) if "default" in part else None
        about, kinds = ": ".join(dict.fromkeys(titles)), part.get("type", "")
        kind = " or ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)
        found.append(FormField(name, kind, about, choices, is_required, default))
    return found


def form_faults(schema: Mapping[str, Any], values: Any) -> list[SchemaFault]:
    """Return why values do not fit a form. Raises UnusableSchema."""
    return _checker(canonical_text(schema))(values)


def form_values(schema: Mapping[str, Any], content: str) -> Any:
    """Return the values of an answer: JSON data; the text of a form with one field may be its value."""
    found = _parsed(content)
    fields = schema.get("properties") or {}
    if isinstance(found, dict) or len(fields) != 1:
        return found
    [name] = fields
    return {name: _typed(_part(schema, name), content)}


def field_value(schema: Mapping[str, Any], name: str, text: str) -> Any:
    """Return the value of one field as a person types it; an empty text is its default, or MISSING.

    Raises:
        ValueError: The text is no value of the field; the message is a clause with the name of the field.
    """
    part = _part(schema, name)
    value = _typed(part, text) if text.strip() else part.get("default", MISSING)
    if value is MISSING:
        if name in (schema.get("required") or ()):
            raise ValueError(f"{name}: a value is required")
        return MISSING
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    alone = {"type": "object", "properties": {name: part}, **definitions}
    faults = form_faults(alone, {name: value})
    if not faults:
        return value
    if text.strip() and not form_faults(alone, {name: text}):  # a number, for a field that takes text or null
        return text
    raise ValueError(listed(faults))


def canonical_text(data: Mapping[str, Any]) -> str:
    """Return JSON data as text: equal data have the same one."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)


def _part(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the schema of a field."""
    part = schema["properties"][name]
    return part if isinstance(part, Mapping) else {}


def _typed(part: Mapping[str, Any], text: str) -> Any:
    """Return the value that a text means for a field; the schema decides whether it is allowed."""
    kind, word = part.get("type"), text.strip()
    if kind == "array":
        found = _parsed(text)
        items = part["items"] if isinstance(part.get("items"), Mapping) else {}
        return found if isinstance(found, list) else [_typed(items, one) for one in text.split(",")]
    for value, title in _choices(part):
        if word and word in {_shown(value), title}:
            return value
    if kind == "boolean" and word.lower() in _TRUE | _FALSE:
        return word.lower() in _TRUE
    return text if kind == "string" else _parsed(text)


def _choices(part: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return the values that a field allows with their titles, if its schema lists them."""
    if isinstance(items := part.get("items"), Mapping):
        return _choices(items)
    if isinstance(values := part.get("enum"), list):
        return [(value, "") for value in values]
    named = part.get("oneOf") or part.get("anyOf") or ()
    return [
        (one["const"], str(one.get("title") or ""))
        for one in named
        if isinstance(one, Mapping) and "const" in one
    ]


def _shown(value: Any, title: str = "") -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"{text} ({title})" if title and title != text else text


def _parsed(text: str) -> Any:
    """Return JSON data, or the text if it is none; numbers are finite."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


@functools.lru_cache(maxsize=64)
def _checker(schema: str) -> Check:
    return checker(json.loads(schema))


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

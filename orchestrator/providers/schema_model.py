"""A model that needs no script: it calls each tool once with values made from the schemas, then answers.

It shows an agent at work without a key (`orchestrator run "Hi." --model demo`), and is the shortest test of one: every
tool runs with arguments that fit its schema, and the answer has the type of the output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.llm.json_schema import checker
from orchestrator.llm.message import Request, ToolCall, Usage
from orchestrator.llm.port import Clock
from orchestrator.providers.scripted import AUTO_ID, ONE_EACH, Answer, Double

_DEEPEST: Final = 20
_OF_FORMAT: Final[Mapping[str, str]] = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "PT1H",
    "email": "ann@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""Format of a text -> an example."""
_OF_KIND: Final[Mapping[str, Any]] = {"boolean": False, "null": None}


class SchemaLLM(Double):
    """A model that calls each tool of the agent once, all in its first answer, and then answers in the output type.

    Arguments and answer are the simplest values that the schemas allow: a default, the first choice, a number in its
    range, the name of a field as its text. A tool whose arguments have a pattern needs an example in its schema.

    Args:
        model: Name of the model.
        usage: Usage of each answer.
        latency: Seconds that each answer takes on `clock`.
        clock: Clock of the latency.

    Raises:
        ConfigError: No value could be made for a schema.

    Example:
        result = Agent(SchemaLLM(), tools=[refund], output_type=Receipt).run_sync("Refund A1.")
        assert isinstance(result.output, Receipt)
    """

    def __init__(
        self,
        *,
        model: str = "schema",
        usage: Usage = ONE_EACH,
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(lambda _: _answer, model=model, usage=usage, latency=latency, clock=clock)


def _answer(request: Request) -> Answer:
    called = [call.name for message in request.messages for call in message.tool_calls]
    new = [offer for offer in request.tools if offer.name not in called and request.tool_choice != "none"]
    if new:
        return [
            ToolCall(AUTO_ID, offer.name, json.dumps(value_of(offer.parameters, f"tool {offer.name!r}")))
            for offer in new
        ]
    if request.output_schema is not None:
        return json.dumps(value_of(request.output_schema, "the output"))
    told = ", ".join(dict.fromkeys(called))
    return f"I called {told}." if told else "I have no tools to call."


def value_of(schema: Mapping[str, Any], whose: str = "a value") -> Any:
    """Return the simplest value that a JSON schema allows. Raises ConfigError if none could be made.

    Example:
        >>> value_of({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
        {'city': 'city'}
    """
    found = _value(schema, schema, "text", _DEEPEST)
    if faults := checker(schema)(found):
        place = ".".join(map(str, faults[0].path)) or "the whole value"
        raise ConfigError(
            f"no value could be made from the schema of {whose}: {place}: {faults[0].message}; "
            "give the schema an example (Field(examples=[…])), or use ScriptedLLM"
        )
    return found


def _value(schema: Any, root: Mapping[str, Any], name: str, left: int) -> Any:
    schema = schema if isinstance(schema, Mapping) and left else {"const": None}  # True, or endless recursion
    if (written := _written(schema)) is not None:
        return written[0]
    if (other := _other_form(schema, root)) is not None:
        return _value(other, root, name, left - 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "object":
        wanted = {key: schema.get("properties", {}).get(key, {}) for key in schema.get("required", ())}
        return {key: _value(one, root, key, left - 1) for key, one in wanted.items()}
    if kind == "array":
        return _items(schema, root, name, left)
    if kind == "string":
        text = _OF_FORMAT.get(schema.get("format", ""), name)
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
    return _number(schema, whole=kind == "integer") if kind in {"integer", "number"} else _OF_KIND.get(kind)


def _written(schema: Mapping[str, Any]) -> tuple[Any] | None:
    """Return the value that a schema has itself, in a tuple: a constant, a default, an example or a choice."""
    for key in ("const", "default"):
        if key in schema:
            return (schema[key],)
    return next(((schema[key][0],) for key in ("examples", "enum") if schema.get(key)), None)


def _other_form(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema without its reference, its parts or its alternatives; None if it has none."""
    if "$ref" in schema:
        return _target(schema, root)
    if parts := schema.get("allOf"):
        return _merged(schema, parts, root)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if not choices:
        return None
    real = [one for one in choices if one.get("type") != "null"] or choices
    return {**{key: one for key, one in schema.items() if key not in {"anyOf", "oneOf"}}, **real[0]}


def _target(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema that a reference names, with the members beside the reference."""
    target: Any = root
    for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
        target = target.get(part.replace("~1", "/").replace("~0", "~"), {}) if part else target
    return {**target, **{key: one for key, one in schema.items() if key != "$ref"}}


def _merged(
    schema: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], root: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a schema with its parts in it; properties and required names add up."""
    found: dict[str, Any] = {key: one for key, one in schema.items() if key != "allOf"}
    for part in parts:
        for key, one in (_target(part, root) if "$ref" in part else part).items():
            if key == "properties":
                found[key] = {**found.get(key, {}), **one}
            elif key == "required":
                found[key] = [*found.get(key, ()), *one]
            else:
                found.setdefault(key, one)
    return found


def _items(schema: Mapping[str, Any], root: Mapping[str, Any], name: str, left: int) -> list[Any]:
    first = [_value(one, root, name, left - 1) for one in schema.get("prefixItems", ())]
    least = max(schema.get("minItems", 0), 0 if schema.get("maxItems") == 0 else 1)
    more = schema.get("items", {} if not first else False)
    while more is not False and len(first) < least:
        one = _value(more, root, name, left - 1)
        if schema.get("uniqueItems") and one in first:
            one = (
                f"{one}{len(first)}"
                if isinstance(one, str)
                else one + len(first)
                if isinstance(one, int)
                else one
            )
        first.append(one)
    return first


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf") or (1 if whole else 0.5)
    low = least if least is not None else above + step if above is not None else None
    high = most if most is not None else below - step if below is not None else None
    found = 1 if low is None else max(low, 1 if high is None or high >= 1 else low)
    found = found if high is None else min(found, high)
    if multiple := schema.get("multipleOf"):
        found = -(-found // multiple) * multiple
    return int(found) if whole else float(found)

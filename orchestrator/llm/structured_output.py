"""Parse and check the final answer of a model. Pure functions over text; this module asks no model again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import ValidationError

from orchestrator.errors import ConfigError
from orchestrator.llm.json_schema import SchemaFault, UnusableSchema, checker


class UnusableAnswer(ValueError):
    """The answer cannot be used; the text gives the model the reason."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The required form of a final answer: a JSON schema for the model, and a reader from JSON to the value."""

    schema: Mapping[str, Any]
    read: Callable[[Any], Any]
    """(parsed JSON) -> value; raises UnusableAnswer."""

    @classmethod
    def of(cls, kind: object) -> OutputSpec:
        """Build a spec from a pydantic model, any type that pydantic understands, or a JSON schema mapping.

        Raises ConfigError for any other kind.
        """
        return _by_schema(kind) if isinstance(kind, Mapping) else _by_type(kind)

    def parse(self, text: str, *, cut: bool = False) -> Any:
        """Return the value of an answer: the first JSON in it that matches. Raises UnusableAnswer.

        The end of a `cut` answer is missing, so only values count in it that are closed before the cut.
        """
        issue = "the answer is empty" if not text.strip() else "the answer contains no JSON"
        for index, candidate in enumerate(json_values(text, cut=cut)):
            try:
                return self.read(candidate)
            except UnusableAnswer as error:
                issue = str(error) if index == 0 else issue
        raise UnusableAnswer(issue)


def _by_type(kind: Any) -> OutputSpec:
    from pydantic import TypeAdapter

    refused = f"output_type {kind!r} is neither a type nor a JSON schema"
    if isinstance(kind, str):  # pydantic would evaluate it
        raise ConfigError(refused)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema = adapter.json_schema()
    except Exception as error:  # pydantic raises several kinds of error for a value that is not a type
        raise ConfigError(refused) from error

    def read(value: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(value))  # JSON mode: a list may fill a tuple, text a date
        except ValidationError as error:
            faults = (
                f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors()
            )
            raise UnusableAnswer("; ".join(faults)) from error

    return OutputSpec(schema, read)


def _by_schema(schema: Mapping[str, Any]) -> OutputSpec:
    try:
        check = checker(schema)
    except UnusableSchema as error:
        raise ConfigError(f"output_type is not a usable JSON schema: {error}") from error

    def read(value: Any) -> Any:
        if faults := check(value):
            raise UnusableAnswer("; ".join(f"{_path_of(fault)}: {fault.message}" for fault in faults[:5]))
        return value

    return OutputSpec(schema, read)


def _path_of(fault: SchemaFault) -> str:
    """Return the place of a fault as a JSON path."""
    return "$" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in fault.path)


def json_values(text: str, *, cut: bool = False) -> Iterator[Any]:
    """Yield the JSON values of a text: the whole text, else each balanced object or array in it, in order.

    This skips fences, prefixes and doubled answers. An answer that was cut off yields no complete value. If it is
    known that the text is `cut`, a number at its end is not complete either, and nothing behind a quote that is never
    closed counts.
    """
    whole = _loaded(text)
    if whole and not (cut and text[-1:].isdigit()):
        yield from whole
        return
    for part in _balanced(text, cut=cut):
        yield from _loaded(part)


def _loaded(text: str) -> tuple[Any, ...]:
    """Return the value of a JSON text, or nothing."""
    try:
        return (json.loads(text),)
    except (ValueError, RecursionError):
        return ()


_OPENING = re.compile(r"[\[{]")
_MARK = re.compile(r'"(?:[^"\\]|\\.)*+(?P<end>"?)|[\[\]{}]', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}


def _balanced(text: str, *, cut: bool) -> Iterator[str]:
    """Yield the outermost brackets that are closed. Nothing inside them counts as an answer."""
    position = 0
    while opening := _OPENING.search(text, position):
        depth = 0
        for mark in _marks(text, opening.start(), cut=cut):
            depth += _STEP.get(mark[0], 0)
            if not depth:
                position = mark.end()
                yield text[opening.start() : position]
                break
        else:
            return  # cut off


def _marks(text: str, position: int, *, cut: bool) -> Iterator[re.Match[str]]:
    """Yield brackets outside of strings, and strings.

    A quote that is never closed starts no string, except in a cut text: there it is a string that lacks its end.
    """
    for mark in _MARK.finditer(text, position):
        if mark["end"] == "":  # searched to the end of the text once, not for each quote behind it
            if not cut:
                yield from _BRACKET.finditer(text, mark.start())
            return
        yield mark


def error_payload(text: str) -> str | None:
    """Return the complaint of an answer that is an object with a non-empty `error`, else None."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    problem = value.get("error") if isinstance(value, dict) else None
    return None if not problem else f"the answer is an error object: {str(problem)[:500]}"

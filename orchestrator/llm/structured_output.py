"""Parse and check the final answer of a model. Pure functions over text; this module asks no model again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import ValidationError, from_json

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

    def parse_partial(self, text: str) -> Any:
        """Return the longest prefix of an unfinished answer that matches. Raises UnusableAnswer if none does yet.

        A prefix has the items and members that have arrived completely: a text or number in progress is left out. It is
        validated as a whole answer is, so an object appears when its required members are there.
        """
        for prefix in json_prefixes(text):
            try:
                return self.read(prefix)
            except UnusableAnswer:
                continue
        raise UnusableAnswer("no part of the answer matches yet")


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


def json_prefixes(text: str) -> Iterator[Any]:
    """Yield candidates for the prefix of an unfinished answer, the longest first.

    These are the objects and arrays that are closed, then the one that is open: with all that has arrived, then without
    its innermost open object or array, and so on outwards. Pydantic's own partial validation is experimental and does
    not look inside models; this needs nothing but the validation of a whole value.
    """
    position = 0
    while opening := _OPENING.search(text, position):
        depth, position = 0, opening.start()
        for mark in _marks(text, opening.start(), cut=True):
            depth += _STEP.get(mark[0], 0)
            position = mark.end()
            if not depth:
                yield from _loaded(text[opening.start() : position])
                break
        else:
            is_in_text = '"' in text[position:]
            yield from _open_values(
                text[opening.start() :] if is_in_text else _NUMBER.sub("", text[opening.start() :]), depth
            )
            return


_NUMBER = re.compile(r"[-+.\deE]+\Z")
"""The end of a text that can be a number in progress."""


def _open_values(text: str, depth: int) -> Iterator[Any]:
    """Yield the value of a text with this many open brackets, then without its last open value, and so on."""
    try:
        value = from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return
    yield value
    spine = [value]
    for _ in range(depth - 1):
        inner = spine[-1]
        if not inner or not isinstance(inner, dict | list):
            return  # a name that is there twice hides the open value
        spine.append(inner[next(reversed(inner))] if isinstance(inner, dict) else inner[-1])
    for outer in reversed(spine[:-1]):
        if isinstance(outer, dict):
            outer.popitem()
        else:
            outer.pop()
        yield value


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

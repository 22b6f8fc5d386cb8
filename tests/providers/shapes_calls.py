"""Wire shapes: how servers send parallel calls in fragments, and members that they want back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from orchestrator.llm.message import Response, ToolCall
from tests.providers.shape import (
    COST,
    END,
    FURTHER,
    STOP,
    USAGE,
    Shape,
    block,
    chunk,
    completion,
    message,
    message_delta,
    message_start,
)

LEFT: Final = None
"""A member that the server leaves out."""
Fragment: TypeAlias = tuple[Any, Any, Any, Any]
"""Index, id, name and arguments."""


def fragment(index: Any, id_: Any, name: Any, arguments: Any) -> dict[str, Any]:
    raw = {"index": index, "id": id_}
    function = {"name": name, "arguments": arguments}
    kept = {key: value for key, value in raw.items() if value is not LEFT}
    return {**kept, "function": {key: value for key, value in function.items() if value is not LEFT}}


X, Y = '{"x": 1}', '{"y": 2}'
CALLS: dict[str, tuple[Sequence[Fragment], Sequence[tuple[str, str, str]]]] = {
    "as OpenAI": (
        [(0, "a", "f", ""), (0, LEFT, LEFT, X), (1, "b", "g", ""), (1, LEFT, LEFT, Y)],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "interleaved by index": (
        [
            *((0, "a", "f", ""), (1, "b", "g", ""), (0, LEFT, LEFT, X[:3]), (1, LEFT, LEFT, Y[:3])),
            *((0, LEFT, LEFT, X[3:]), (1, LEFT, LEFT, Y[3:])),
        ],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "index as text": (
        [("0", "a", "f", X[:3]), ("1", "b", "g", Y[:3]), ("0", LEFT, LEFT, X[3:]), (1, LEFT, LEFT, Y[3:])],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "index only in the first fragment": (
        [(0, "a", "f", ""), (LEFT, LEFT, LEFT, X), (1, "b", "g", ""), (LEFT, LEFT, LEFT, Y)],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "no index": (
        [(LEFT, "a", "f", X[:3]), (LEFT, LEFT, LEFT, X[3:]), (LEFT, "b", "f", Y)],
        [("a", "f", X), ("b", "f", Y)],
    ),
    "no index, interleaved by id": (
        [
            (LEFT, "a", "f", X[:3]),
            (LEFT, "b", "f", Y[:3]),
            (LEFT, "a", LEFT, X[3:]),
            (LEFT, "b", LEFT, Y[3:]),
        ],
        [("a", "f", X), ("b", "f", Y)],
    ),
    "all at index 0": (
        [(0, "a", "f", X), (0, "b", "g", Y[:3]), (0, LEFT, LEFT, Y[3:])],
        [("a", "f", X), ("b", "g", Y)],
    ),
    "all at index 0, with their ids": (
        [(0, "a", "f", X[:3]), (0, "b", "f", Y[:3]), (0, "a", "f", X[3:]), (0, "b", "f", Y[3:])],
        [("a", "f", X), ("b", "f", Y)],
    ),
    "all at index 0, without ids": ([(0, LEFT, "f", X), (0, LEFT, "g", Y)], [("", "f", X), ("", "g", Y)]),
    "all at index 0, empty ids, one tool": ([(0, "", "f", X), (0, "", "f", Y)], [("", "f", X), ("", "f", Y)]),
    "one id for all": ([(0, "c", "f", X), (0, "c", "g", Y)], [("c", "f", X), ("c", "g", Y)]),
    "no arguments yet, another name": (
        [(0, "", "f", ""), (0, "", "g", "{}")],
        [("", "f", ""), ("", "g", "{}")],
    ),
    "a new id with each fragment": (
        [(0, "a", "f", X[:3]), (0, "b", LEFT, X[3:5]), (0, "c", LEFT, X[5:])],
        [("a", "f", X)],
    ),
    "a new id and the name with each fragment": (
        [(0, "a", "f", X[:3]), (0, "b", "f", X[3:5]), (0, "c", "f", X[5:])],
        [("a", "f", X)],
    ),
    "a new index with each fragment": ([(0, "a", "f", X[:3]), (1, "", "", X[3:])], [("a", "f", X)]),
    "id and name with each fragment": (
        [(0, "a", "f", X[:3]), (0, "a", "f", X[3:]), (0, "a", "f", "")],
        [("a", "f", X)],
    ),
    "the name with each fragment": ([(0, LEFT, "f", X[:3]), (0, LEFT, "f", X[3:])], [("", "f", X)]),
    "the name later": ([(0, "a", LEFT, ""), (0, LEFT, "f", X)], [("a", "f", X)]),
    "the id later": ([(0, LEFT, "f", X[:3]), (0, "a", LEFT, X[3:])], [("a", "f", X)]),
    "an index that is none": ([(True, "a", "f", X), ([], "b", "g", Y)], [("a", "f", X), ("b", "g", Y)]),
    "brackets in strings": (
        [(0, LEFT, "f", '{"a": "}\\"'), (0, LEFT, "f", '{\\\\"}'), (0, LEFT, "f", X)],
        [("", "f", '{"a": "}\\"{\\\\"}'), ("", "f", X)],
    ),
}


def read(*calls: tuple[str, str, str], finish: str = "tool_calls") -> Response:
    return Response(None, tuple(ToolCall(*call) for call in calls), finish, USAGE, "m")


def streams() -> Iterator[tuple[str, Shape]]:
    for name, (fragments, calls) in CALLS.items():
        stream = "".join(chunk({"tool_calls": [fragment(*one)]}) for one in fragments)
        yield name, Shape(read(*calls), stream + chunk({}, "tool_calls") + END, **CALLED)


CALLED: dict[str, Any] = {"requests": 2, "cost": COST + FURTHER}
"""The model reads the results, and answers."""
TWO = (("a", "f", X), ("b", "g", Y))
STARTS = [{"type": "tool_use", "id": id_, "name": name, "input": {}} for id_, name, _ in TWO]
BLOCKS = [{**start, "input": json.loads(call[2])} for start, call in zip(STARTS, TWO, strict=True)]
WHOLE: dict[str, Shape] = {
    "calls in a list without ids": Shape(
        read(("", "f", X), ("", "f", Y)),
        whole=completion({"tool_calls": [fragment(0, "", "f", X), fragment(0, LEFT, "f", Y)]}, "tool_calls"),
        **CALLED,
    ),
    "calls in a list with one id": Shape(
        read(("c", "f", X), ("c", "g", Y)),
        whole=completion({"tool_calls": [fragment(0, "c", "f", X), fragment(0, "c", "g", Y)]}, "tool_calls"),
        **CALLED,
    ),
    "a null name": Shape(
        read(("a", "", X)),
        chunk({"tool_calls": [fragment(0, "a", LEFT, X)]}) + chunk({}, "tool_calls") + END,
        completion({"tool_calls": [{"id": "a", "function": {"name": None, "arguments": X}}]}, "tool_calls"),
        **CALLED,
    ),
    "blocks of one index": Shape(
        read(*TWO, finish="tool_use"),
        message_start()
        + "".join(block(call[2], start=start) for start, call in zip(STARTS, TWO, strict=True))
        + message_delta("tool_use")
        + STOP,
        message(*BLOCKS, stop="tool_use"),
        "anthropic",
        **CALLED,
    ),
}

SHAPES: dict[str, Shape] = {**dict(streams()), **WHOLE}

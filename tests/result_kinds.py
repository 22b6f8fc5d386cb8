"""Values that a tool, a stage or a server may return, and what is to become of each: text, or `result_unreadable`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pydantic
from pydantic import BaseModel, model_serializer

from orchestrator.llm.message import ContentPart

TEN_MB = 10_000_000
_WRITES_DEQUES = tuple(int(part) for part in pydantic.VERSION.split(".")[:2]) >= (2, 14)


class Kind(NamedTuple):
    """One kind of value."""

    make: Callable[[], object]
    text: str | None
    """The text that the model reads; None if the value cannot be shown."""
    type: str = ""
    """Name of the stored type of a value that cannot be shown."""


class Receipt:
    """An object without a JSON form."""

    def __init__(self) -> None:
        self.number = 7

    def __repr__(self) -> str:
        return f"Receipt(number={self.number})"


class Mute:
    """An object whose `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("closed")


class Lazy:
    """A proxy that cannot reach its object: even its class cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no object is bound")


class Hollow(list[Any]):
    """A list that cannot be read."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("the cursor is closed")

    def __len__(self) -> int:
        return 3


class Broken(BaseModel):
    """A model whose serializer raises."""

    @model_serializer
    def dump(self) -> dict[str, Any]:
        raise ZeroDivisionError("no rate is known")


@dataclasses.dataclass
class Scan:
    """A dataclass."""

    page: object


def deep(levels: int) -> list[Any]:
    """Return lists in lists."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> list[Any]:
    """Return a list that holds itself."""
    ring: list[Any] = []
    ring.append({"again": ring})
    return ring


def secret() -> object:
    """Return an object whose `repr` shows a secret."""
    return type("Client", (), {"__repr__": lambda _: "Client(api_key='hunter2-hunter2', host='a')"})()


SURROGATE = os.fsdecode(b"facture-\xe9.pdf")

KINDS: dict[str, Kind] = {
    "text": Kind(lambda: "paid", "paid"),
    "nothing": Kind(lambda: None, "null"),
    "data": Kind(lambda: {"paid": [1, True, None]}, '{"paid":[1,true,null]}'),
    "dataclass": Kind(lambda: Scan(1), '{"page":1}'),
    "date": Kind(lambda: {"at": dt.date(2026, 3, 1)}, '{"at":"2026-03-01"}'),
    "set": Kind(lambda: {3}, "[3]"),
    "deque": Kind(lambda: deque([1]), "[1]") if _WRITES_DEQUES else Kind(lambda: deque([1]), None, "deque"),
    "large number": Kind(lambda: {"n": 10**30}, '{"n":1' + "0" * 30 + "}"),
    "NaN": Kind(lambda: {"a": float("nan"), "b": float("inf")}, '{"a":"NaN","b":"Infinity"}'),
    "surrogate in text": Kind(lambda: SURROGATE, "facture-?.pdf"),
    "surrogate in data": Kind(lambda: {"receipt": SURROGATE}, '{"receipt":"facture-?.pdf"}'),
    "surrogate in a name": Kind(lambda: {SURROGATE: {1}}, '{"facture-?.pdf":[1]}'),
    "surrogate in a dataclass": Kind(lambda: [Scan(SURROGATE)], '[{"page":"facture-?.pdf"}]'),
    "surrogate and NaN": Kind(lambda: [SURROGATE, float("nan")], '["facture-?.pdf","NaN"]'),
    "depth 200": Kind(lambda: deep(200), "[" * 201 + "]" * 201),
    "object": Kind(Receipt, None, "Receipt"),
    "object in data": Kind(lambda: {"receipt": [Receipt()]}, None, "dict"),
    "class": Kind(lambda: Receipt, None, "type"),
    "exception": Kind(lambda: ValueError("not raised"), None, "ValueError"),
    "range": Kind(lambda: range(3), None, "range"),
    "generator": Kind(lambda: (n for n in range(3)), None, "generator"),
    "generator in data": Kind(lambda: {"rows": (n for n in range(3))}, None, "dict"),
    "endless iterator in data": Kind(lambda: [{"rows": (itertools.count(),)}], None, "list"),
    "bytes": Kind(lambda: b"%PDF", None, "bytes"),
    "bytes in data": Kind(lambda: {"pdf": b"%PDF\xff"}, None, "dict"),
    "bytes deep in data": Kind(lambda: [{"a": [Scan(b"\xff")]}], None, "list"),
    "cycle": Kind(cycle, None, "list"),
    "depth 5,000": Kind(lambda: deep(5_000), None, "list"),
    "a model that raises": Kind(lambda: [Broken()], None, "list"),
    "a list that raises": Kind(Hollow, None, "Hollow"),
    "an object without repr": Kind(Mute, None, "Mute"),
    "a proxy that raises": Kind(Lazy, None, "Lazy"),
    "a part without content": Kind(lambda: ContentPart(type="image_url"), None, "ContentPart"),
    "a part with an object": Kind(
        lambda: ["see", ContentPart(type="image_url", image_url={"url": "https://a/b", "of": Receipt()})],
        None,
        "list",
    ),
    "10 MB of text": Kind(lambda: "x" * TEN_MB, "x" * 100),
    "10 MB of data": Kind(lambda: ["x" * 100] * (TEN_MB // 100), '["' + "x" * 98),
    "10 MB of bytes": Kind(lambda: {"pdf": b"\xff" * TEN_MB}, None, "dict"),
}
"""Name -> kind. Of a result of 10 MB only the start of the text is compared."""

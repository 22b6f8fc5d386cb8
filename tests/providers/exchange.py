"""The recorded exchanges of tests/data/provider_exchanges, and the form of a row about one of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.errors import LLMError
from orchestrator.llm.message import Response
from orchestrator.llm.retry import classify

DATA = Path(__file__).parents[1] / "data/provider_exchanges"

FILES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.json"))
}
"""File name without its ending -> what is in it."""

Place: TypeAlias = tuple[str, int]
"""File, and index of the exchange in it."""

PLACES: tuple[Place, ...] = tuple(
    (name, index) for name, file in FILES.items() for index in range(len(file["exchanges"]))
)


@dataclass(frozen=True, slots=True)
class Failed:
    """What an exchange comes to that is no answer."""

    kind: str
    status: int | None
    retry_after: float | None = None
    retryable: bool = False

    @classmethod
    def of(cls, error: LLMError) -> Failed:
        return cls(error.kind, error.status, error.retry_after, classify(error).retryable)


Expected: TypeAlias = Response | Failed


def places(api: str) -> list[Place]:
    """The places of one API."""
    return [(name, index) for name, index in PLACES if FILES[name]["api"] == api]


def is_streamed(place: Place) -> bool:
    return "sse" in FILES[place[0]]["exchanges"][place[1]]["response"]

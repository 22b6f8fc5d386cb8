"""Ids of calls for APIs that refuse empty and repeated ids, and calls without a result."""

from __future__ import annotations

import re
from typing import Final, Generic, TypeVar

CallT = TypeVar("CallT")

ODD: Final = re.compile(r"[^a-zA-Z0-9_-]")
"""A character that APIs refuse in ids and names."""
NO_RESULT: Final = "No result of this call was recorded."


class CallIds(Generic[CallT]):
    """The calls of a conversation: their ids as sent, and the last turn's calls that have no result yet."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._open: list[tuple[str, CallT]] = []
        """The id in the conversation, and the call as sent."""

    def sent(self, given: str) -> str:
        """Return the id to send: the given one if it is valid and new."""
        base = ODD.sub("_", given) or "call"
        known, number = base, 1
        while known in self._ids:
            number += 1
            known = f"{base}_{number}"
        self._ids.add(known)
        return known

    def open(self, given: str, call: CallT) -> None:
        """Add a call that needs a result."""
        self._open.append((given, call))

    def answered(self, given: str) -> CallT | None:
        """Remove and return the call that a result answers.

        It is the first with the id of the result, else the first if either id is empty.
        """
        same = (at for at, (known, _) in enumerate(self._open) if known == given)
        unnamed = (at for at, (known, _) in enumerate(self._open) if not (known and given))
        at = next(same, next(unnamed, None))
        return None if at is None else self._open.pop(at)[1]

    def unanswered(self) -> list[CallT]:
        """Remove and return the calls without a result."""
        calls = [call for _, call in self._open]
        self._open.clear()
        return calls

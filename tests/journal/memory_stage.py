"""What the tests of the memory in a SQLite file share: what is said, and what failed."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.llm.message import Message
from orchestrator.llm.port import FailureEpisode


def exchange(number: int | str) -> list[Message]:
    return [Message("user", f"question {number}"), Message("assistant", f"answer {number}")]


def failure(number: int, error: str = "boom", *calls: tuple[str, str]) -> FailureEpisode:
    return FailureEpisode(f"r{number}", "llm_error", f"{error} {number}", 1, calls)


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]

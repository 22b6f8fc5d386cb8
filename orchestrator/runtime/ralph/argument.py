"""Checks of arguments that only `Ralph` takes."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import ConfigError


def asks(answer: object) -> Any:
    """Return a source of answers. Raises ConfigError."""
    if answer is None or callable(answer) or answer in {"wait", "park"}:
        return answer
    raise ConfigError(f"answer is {answer!r}; give a function of the questions, 'wait', 'park' or None")


def strict(open_questions: object) -> bool:
    """Return whether open questions fail a run. Raises ConfigError."""
    if open_questions in {"proceed", "fail"}:
        return open_questions == "fail"
    raise ConfigError(f"open_questions is {open_questions!r}; it must be 'proceed' or 'fail'")


def said(kind: str, value: object) -> str:
    """Return non-empty text of a person; `kind` is its name. Raises ConfigError."""
    if isinstance(value, str) and value.strip():
        return text(kind, value)
    raise ConfigError(f"{kind} needs non-empty text; got {value!r}")


def text(kind: str, value: str) -> str:
    """Return text that can be stored. Raises ConfigError."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{kind} is not text: it contains bytes that are not UTF-8") from None
    return value

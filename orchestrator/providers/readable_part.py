"""The kinds of content parts that a model reads. A request with another part is refused before it is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from orchestrator.errors import ConfigError
from orchestrator.llm.content_part import KINDS, PartKind, kind_of
from orchestrator.llm.message import Message


def checked_kinds(reads: Collection[str] | None, sendable: Collection[PartKind]) -> tuple[PartKind, ...]:
    """Return the kinds that a model reads, by default all that its API carries. Raises ConfigError."""
    if reads is None:
        return tuple(sendable)
    wrong = [kind for kind in reads if kind not in sendable]
    if isinstance(reads, str) or wrong or "text" not in reads:
        raise ConfigError(f"reads is {reads!r}; possible: 'text' and any of {', '.join(sendable)}")
    return tuple(kind for kind in KINDS if kind in reads)


def refuse_unreadable(model: str, reads: Collection[PartKind], messages: Iterable[Message]) -> None:
    """Raise ConfigError for a part of a kind that the model does not read. Unknown parts pass."""
    for message in messages:
        if not isinstance(message.content, list):
            continue
        for part in message.content:
            kind = kind_of(part)
            if kind is not None and kind not in reads:
                raise ConfigError(
                    f"model {model!r} reads {', '.join(reads)}, but a {message.role} message has a part of kind "
                    f"{kind!r}; remove the part or use another model"
                )

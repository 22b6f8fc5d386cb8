"""Why a model ended its answer: the words of the vendors, and one closed vocabulary for all of them.

A `Response` keeps the vendor's word, because logs and spans are compared with the vendor's own documents. Decisions
read the closed vocabulary, which is that of OpenTelemetry's GenAI conventions with a word for a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class FinishReason(StrEnum):
    """The closed vocabulary."""

    STOP = "stop"
    """The model ended its answer."""
    TOOL_CALL = "tool_call"
    """The model calls tools."""
    LENGTH = "length"
    """The output limit or the context window cut the answer."""
    CONTENT_FILTER = "content_filter"
    """A filter of the vendor cut or blocked the answer."""
    REFUSAL = "refusal"
    """The model refused."""
    ERROR = "error"
    """The vendor aborted the answer."""
    OTHER = "other"
    """A word that no known vendor uses, or one that says neither that the answer is complete nor that it was cut."""


_WORDS: Mapping[FinishReason, tuple[str, ...]] = {
    FinishReason.STOP: (
        *("stop", "end_turn", "stop_sequence", "completed", "complete", "eos", "eos_token", "end", "normal"),
    ),
    FinishReason.TOOL_CALL: ("tool_calls", "tool_call", "tool_use", "function_call"),
    FinishReason.LENGTH: (
        *("length", "max_tokens", "max_output_tokens", "max_length", "model_length", "incomplete"),
        *("model_context_window_exceeded", "context_length_exceeded"),
    ),
    FinishReason.CONTENT_FILTER: (
        *("content_filter", "content_filtered", "guardrail_intervened", "sensitive", "safety"),
        *("image_safety", "recitation", "blocklist", "prohibited_content", "spii", "language", "model_armor"),
    ),
    FinishReason.REFUSAL: ("refusal",),
    FinishReason.ERROR: (
        *("error", "failed", "abort", "network_error", "insufficient_system_resource"),
        *("malformed_function_call", "unexpected_tool_call", "too_many_tool_calls", "malformed_response"),
        *("missing_thought_signature", "malformed_tool_use", "malformed_model_output"),
    ),
    FinishReason.OTHER: ("pause_turn",),
}
_OF_WORD = {word: reason for reason, words in _WORDS.items() for word in words}

FINISH_REASONS = frozenset(_OF_WORD)
"""The words that known vendors give for the end of an answer, in lower case."""

INCOMPLETE: Mapping[FinishReason | None, str] = {
    FinishReason.LENGTH: "truncated",
    FinishReason.CONTENT_FILTER: "filtered",
    FinishReason.REFUSAL: "refused",
}
"""The finish reasons of an answer that is not complete -> the reason of a run that ends with it."""


def finish_reason_of(word: str | None, refusal: str | None = None) -> FinishReason | None:
    """Return the finish reason of an answer, or None if the vendor gave none.

    Args:
        word: The vendor's word, in any case.
        refusal: The text with which the model refused. Some vendors give `stop` for such an answer.
    """
    if refusal:
        return FinishReason.REFUSAL
    if not word:
        return None
    return _OF_WORD.get(word) or _OF_WORD.get(_plain(word), FinishReason.OTHER)


def finish_word(reason: object) -> str | None:
    """Return the known word in a reason, None for None, and `_other` for any other text from outside."""
    if reason is None or not isinstance(reason, str):
        return None if reason is None else "_other"
    word = reason if reason.lower() in FINISH_REASONS else _plain(reason)
    return word if word.lower() in FINISH_REASONS else "_other"


def _plain(word: str) -> str:
    """Return a word in lower case, without what a gateway writes before it (`filter: SAFETY`)."""
    return word.rpartition(":")[2].strip().lower()

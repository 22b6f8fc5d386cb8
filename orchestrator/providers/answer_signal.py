"""How the servers of each family end, break and fail an answer. This table is the only place that knows.

| family | servers |
|---|---|
| CHAT | OpenAI's chat completions, and every server and gateway that implements them |
| RESPONSES | OpenAI's Responses API and its implementations |
| MESSAGES | Anthropic's Messages API and its implementations |
| LIBRARY | models of pydantic-ai: their libraries read the stream, the reasons of their vendors arrive unchanged |

Gateways translate the answer of any vendor into any family, and often pass on the words of the vendor. Therefore each
row has the words of all vendors, and its own forms.

A finish reason of `broken` is not an answer, whatever came with it: the model or the server failed, and the request is
retried or refused by the kind of the failure. An unknown reason is kept; if the answer has no content, it is
retried too, because servers invent reasons for failures and not for success. An empty reason, and the text `null`,
are none: some servers send one of them with each chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from orchestrator.errors import LLMError
from orchestrator.llm.content_part import kind_of
from orchestrator.llm.finish_reason import finish_word
from orchestrator.llm.message import Response
from orchestrator.providers.reading import malformed, mapping, text

Path: TypeAlias = tuple[str | int, ...]


class AnswerSignals(NamedTuple):
    """The row of a family."""

    end_mark: str
    """Data of an event that ends the answer; empty if the family has no such mark."""
    end_events: frozenset[str]
    """Types of the events that end the answer."""
    members: frozenset[str]
    """An answer, and each event of a stream, has one of these. Any other object with a message is an error."""
    errors: tuple[Path, ...]
    """Where an answer or an event holds an error."""
    broken: Mapping[str, str]
    """Finish reason of an answer that failed, in lower case -> kind of the failure."""


_BROKEN: Final[Mapping[str, str]] = {
    "error": "server_error",  # OpenRouter, Mistral, Cohere, pydantic-ai
    "failed": "server_error",
    "abort": "server_error",  # vLLM, SGLang
    "insufficient_system_resource": "server_error",  # DeepSeek
    "network_error": "server_error",  # Z.ai
    "malformed_function_call": "malformed",  # Gemini, like the next ones
    "unexpected_tool_call": "malformed",
    "too_many_tool_calls": "malformed",
    "malformed_response": "malformed",
    "missing_thought_signature": "client_error",
    "malformed_tool_use": "malformed",  # Bedrock
    "malformed_model_output": "malformed",
}
_ERRORS: Final[tuple[Path, ...]] = (
    ("error",),
    ("errors", 0),  # Cloudflare
    ("base_resp",),  # MiniMax: an error unless its status_code is 0
)

CHAT: Final = AnswerSignals(
    end_mark="[DONE]",
    end_events=frozenset(),
    members=frozenset(("choices", "usage")),
    errors=(*_ERRORS, ("x_groq", "error"), ("choices", 0, "error")),  # the last one of OpenRouter
    broken=_BROKEN,
)
RESPONSES: Final = AnswerSignals(
    end_mark="",  # compatible servers send [DONE] too, also after a failure
    end_events=frozenset(
        ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
    ),
    members=frozenset(("type", "output", "response")),
    errors=(*_ERRORS, ("response", "error")),
    broken=_BROKEN,
)
MESSAGES: Final = AnswerSignals(
    end_mark="[DONE]",  # of proxies, after `message_stop` or in its place
    end_events=frozenset(("message_stop",)),
    members=frozenset(("type", "content")),
    errors=(*_ERRORS, ("message", "error")),
    broken=_BROKEN,
)
LIBRARY: Final = AnswerSignals(
    end_mark="", end_events=frozenset(), members=frozenset(), errors=(), broken=_BROKEN
)

_STATUS_OF_MINIMAX: Final[Mapping[object, str]] = {
    1001: "timeout_error",
    1002: "rate_limit_error",
    1004: "authentication_error",
    1008: "insufficient_quota",
    1026: "content_filter",
    1027: "content_filter",
    1039: "rate_limit_error",
    1041: "rate_limit_error",
    2013: "invalid_request_error",
    2045: "rate_limit_error",
    2049: "invalid_api_key",
    2056: "insufficient_quota",
}
"""`base_resp.status_code` -> the usual word for it; another number is a failure of the server."""


def error_of(body: object, signals: AnswerSignals) -> object:
    """Return the body of an error that an answer, or an event of a stream, holds; None if it holds none."""
    if isinstance(body, list):
        return error_of(body[0], signals) if len(body) == 1 else None
    if not isinstance(body, Mapping):
        return None
    if "error" in (body.get("type"), body.get("object")):
        return body
    for path in signals.errors:
        if problem := _at(body, path):
            if path != ("base_resp",):
                return body if path == ("error",) else {"error": problem}
            if (status := mapping(problem).get("status_code")) not in (0, "0", None):
                said = text(mapping(problem).get("status_msg")) or f"status {status}"
                return {"error": {"code": _STATUS_OF_MINIMAX.get(status), "message": said}}
    says = any(text(body.get(name)) for name in ("message", "detail", "msg"))
    return body if says and signals.members.isdisjoint(body) else None


def _at(body: object, path: Path) -> object:
    for step in path:
        if isinstance(step, int):
            body = body[step] if isinstance(body, list) and len(body) > step else None
        else:
            body = mapping(body).get(step)
    return body


def finish_reason(value: object) -> str | None:
    """Return the finish reason of an answer or a chunk as received; None if there is none yet."""
    return value if isinstance(value, str) and value.strip() not in ("", "null") else None


def checked(response: Response, signals: AnswerSignals) -> Response:
    """Return an answer that ended. Raises LLMError if its finish reason says that it broke off.

    An answer of an unknown reason is one if it has content.
    """
    reason = response.finish_reason
    if reason is None:
        return response
    word = finish_word(reason) or ""
    kind = signals.broken.get(word.lower())
    if kind is not None:
        message = f"the provider aborted its answer (finish reason {reason[:_SHOWN]!r})"
        raise LLMError(message, kind=kind, partial=response.message().text)
    if word == "_other" and _is_empty(response):
        raise malformed(f"it is empty, and its finish reason {reason[:_SHOWN]!r} is unknown")
    return response


_SHOWN: Final = 100


def _is_empty(response: Response) -> bool:
    """Return whether an answer has nothing for a person or a tool; reasoning alone is nothing."""
    if response.tool_calls or response.refusal or response.message().text.strip():
        return False
    parts: list[dict[str, Any]] = response.content if isinstance(response.content, list) else []
    return all(kind_of(part) in (None, "text") for part in parts)

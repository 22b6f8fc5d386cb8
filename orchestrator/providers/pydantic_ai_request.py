"""Convert conversations to messages of pydantic-ai, and its answers to ours.

An answer of text and calls becomes exactly that. Anything else that its provider must receive back (thinking with its
signature, the thought signature of a Gemini call, the id of an item, a generated file) is kept: the content of the
message has a part of the type `pydantic_ai`, with the answer in that library's own JSON form, and the text beside it.
The part is journalled with the message and is sent back as long as text and calls of the message are unchanged. The
adapters of other vendors leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Content, Message, Response, ToolCall, Usage, data_of
from orchestrator.providers.reading import LIBRARY, checked, finish_reason, json_type, mapping, text
from orchestrator.providers.vendor_model import BEGINNING

KEPT: Final = "pydantic_ai"
"""Type of the content part that has an answer in the form of that library."""
_KEPT_MEMBERS: Final = frozenset(
    (
        *("kind", "parts", "state", "model_name", "canonical_system"),
        *("provider_name", "provider_url", "provider_details", "provider_response_id"),
    )
)
_FINISH: Final[Mapping[str, str]] = {"tool_call": "tool_calls"}


def conversation(messages: Iterable[Message]) -> list[ModelMessage]:
    """Return the messages in the form of pydantic-ai. Raises ConfigError for a content part that it cannot carry."""
    made = _Conversation()
    for message in messages:
        made.add(message)
    return made.finished()


class _Conversation:
    """Builds requests, which join the messages between two answers, and answers."""

    def __init__(self) -> None:
        self._messages: list[ModelMessage] = []
        self._parts: list[ModelRequestPart] = []
        self._names: dict[str, str] = {}
        """Id of a call -> name of its tool."""

    def add(self, message: Message) -> None:
        if message.role == "assistant":
            if message.content or message.tool_calls or message.refusal:
                begun = any(not isinstance(part, SystemPromptPart) for part in self._parts)
                if not begun and not any(isinstance(earlier, ModelResponse) for earlier in self._messages):
                    self._parts.append(UserPromptPart(BEGINNING))  # Anthropic, Gemini and Bedrock require it
                self._close_request()
                answer = _kept(message) or _answer_of(message)
                for part, call in zip(_calls_in(answer), message.tool_calls, strict=True):
                    part.tool_call_id, part.tool_name = call.id, call.name  # repaired
                    self._names[call.id] = call.name
                self._messages.append(answer)
        elif message.role == "tool":
            id_ = message.tool_call_id or ""
            outcome: Any = "failed" if message.is_error else "success"
            result = ToolReturnPart(self._names[id_], _content(message.content), id_, outcome=outcome)
            self._parts.append(result)
        elif message.role == "user":
            self._parts.append(UserPromptPart(_content(message.content)))
        elif message.text:
            self._parts.append(SystemPromptPart(message.text))

    def finished(self) -> list[ModelMessage]:
        self._close_request()
        return self._messages

    def _close_request(self) -> None:
        if self._parts:
            self._messages.append(ModelRequest(self._parts))
            self._parts = []


def _answer_of(message: Message) -> ModelResponse:
    said = message.text or message.refusal
    calls = [ToolCallPart(call.name, call.arguments, call.id) for call in message.tool_calls]
    return ModelResponse([*([TextPart(said)] if said else []), *calls])


def _kept(message: Message) -> ModelResponse | None:
    """Return the answer that a message keeps, unless the message was changed since."""
    parts = message.content if isinstance(message.content, list) else []
    kept = next((part["answer"] for part in parts if part.get("type") == KEPT), None)
    if kept is None:
        return None
    try:
        answer = ModelMessagesTypeAdapter.validate_python([kept])[0]
    except ValueError:  # of another version of the library
        return None
    if not isinstance(answer, ModelResponse) or _text(answer) != message.text:
        return None
    given = [call.arguments for call in message.tool_calls]  # names and ids may be repaired
    return answer if [call.arguments for call in _calls(answer)] == given else None


def _calls_in(answer: ModelResponse) -> list[ToolCallPart]:
    return [part for part in answer.parts if isinstance(part, ToolCallPart)]


def _calls(answer: ModelResponse) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            part.tool_call_id,
            part.tool_name,
            part.args if isinstance(part.args, str) else part.args_as_json_str(),
        )
        for part in _calls_in(answer)
    )


def _text(answer: ModelResponse) -> str:
    return "".join(part.content for part in answer.parts if isinstance(part, TextPart))


# ---- content parts ----


def _content(content: Content) -> str | list[UserContent]:
    if isinstance(content, list):
        return [_part(part) for part in content if part.get("type") != KEPT]
    return content or ""


def _part(part: Mapping[str, Any]) -> UserContent:
    kind = part.get("type")
    body = part.get(str(kind))
    if kind == "text":
        return text(part.get("text"))
    if kind == "image_url":
        return _sourced(text(mapping(body).get("url") if isinstance(body, Mapping) else body), ImageUrl)
    if kind == "file":
        return _sourced(text(mapping(body).get("file_data")), DocumentUrl)
    if kind == "input_audio":
        encoding = "mpeg" if mapping(body).get("format") == "mp3" else "wav"
        return _sourced(f"data:audio/{encoding};base64,{mapping(body).get('data')}", AudioUrl)
    shown = json_type(kind) if not isinstance(kind, str) else repr(kind)
    raise ConfigError(
        f"a content part of type {shown} has no form in pydantic-ai; use text, image, file or audio parts"
    )


def _sourced(source: str, address: type[ImageUrl | DocumentUrl | AudioUrl]) -> UserContent:
    if data_of(source) is not None:
        return BinaryContent.from_data_uri(source)
    if not source:
        raise ConfigError("a content part has neither data nor an address; give one of them")
    return address(source)


# ---- answers ----


def response_of(answer: ModelResponse) -> Response:
    """Return an answer of pydantic-ai as ours. Raises LLMError if its finish reason is that of a failure."""
    said = _text(answer)
    thoughts = [part.content for part in answer.parts if isinstance(part, ThinkingPart) and part.content]
    content: Content = said or None
    if not all(map(_is_plain, answer.parts)):
        payload = {"type": "text", "text": said}
        content = [{"type": KEPT, "answer": _stored(answer)}, *([payload] if said else ())]
    response = Response(
        content,
        _calls(answer),
        _finish_reason(answer),
        usage_of(answer.usage),
        answer.model_name or None,
        reasoning="\n\n".join(thoughts) or None,
    )
    return checked(response, LIBRARY)


def _finish_reason(answer: ModelResponse) -> str | None:
    """Return the finish reason in the library's words; for a failure, and where it has none, in the vendor's."""
    known = answer.finish_reason
    if known is None or known == "error":
        return finish_reason((answer.provider_details or {}).get("finish_reason")) or known
    return _FINISH.get(known, known)


def _is_plain(part: object) -> bool:
    """Return whether a message of ours says everything about a part."""
    if not isinstance(part, TextPart | ToolCallPart):
        return False
    return part.id is None and not part.provider_details


def _stored(answer: ModelResponse) -> dict[str, Any]:
    stored = ModelMessagesTypeAdapter.dump_python([answer], mode="json", exclude_none=True)[0]
    return {name: value for name, value in stored.items() if name in _KEPT_MEMBERS}


def usage_of(usage: RequestUsage) -> Usage:
    """Return the usage of an answer: the input includes cached tokens."""
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.details.get("reasoning_tokens") or usage.details.get("thoughts_tokens") or 0,
        cache_write_tokens=usage.cache_write_tokens,
    )

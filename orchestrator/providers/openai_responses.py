"""The Responses API of OpenAI, stateless: every request sends the whole conversation.

`previous_response_id` is not used, and `store` is false unless the parameters set it. The journal is the truth about
a run, so a resume in another process or a fork must not depend on data that a provider stored, and data that is
stored nowhere cannot leak. A stateless conversation must send back:

- Calls and their results, as `function_call` and `function_call_output`, linked by `call_id`. The ids of items are
  not sent: with one, the API requires the reasoning item that preceded it.
- Reasoning items with `encrypted_content`, unchanged: the model continues from them after a tool's result. The API
  returns them only if the parameters ask (`include=["reasoning.encrypted_content"]`, which models without reasoning
  refuse). They are stored as a part of the message's content, so that they are journalled with it. Other reasoning is
  not sent back.

Tools are declared with `strict: false`: the default here would change their parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from orchestrator.llm.message import ArgumentsPiece, Message, ReasoningPiece, Request, Response
from orchestrator.providers import fault
from orchestrator.providers.answer_signal import CHAT, RESPONSES, checked, error_of, finish_reason
from orchestrator.providers.call_assembly import CallAssembly
from orchestrator.providers.event_stream import ServerSentEvent
from orchestrator.providers.openai_form import OpenAIOptions
from orchestrator.providers.openai_schema import named
from orchestrator.providers.parameter import with_extra
from orchestrator.providers.reading import (
    malformed,
    mapping,
    objects,
    parsed,
    text,
    text_or_none,
    tool_call,
    usage,
)
from orchestrator.providers.schema_prompt import instructed
from orchestrator.providers.size_limit import kept_size

_THOUGHT = frozenset(("response.reasoning_summary_text.delta", "response.reasoning_text.delta"))
_BETWEEN = "\n"
"""Separator of the texts of two messages in one answer."""


@dataclass(frozen=True, slots=True)
class ResponsesForm:
    """Requests and answers of the Responses API."""

    signals: ClassVar = RESPONSES
    options: OpenAIOptions = field(default_factory=OpenAIOptions)

    def body(self, model: str, request: Request, *, streamed: bool) -> dict[str, Any]:
        """Return the body of the request; the host's parameters are passed unchanged, ours override them."""
        native, prompted = self.options.schema(request)
        messages = request.messages if prompted is None else instructed(request.messages, prompted)
        body: dict[str, Any] = {
            "store": False,
            **with_extra(request.params),
            "model": model,
            "input": [item for message in messages for item in _items(message)],
        }
        body.update(_tools(request))
        if native is not None:
            form = {"type": "json_schema", **named(native)}
            body["text"] = {**mapping(body.get("text")), "format": form}
        body["stream"] = streamed
        return body

    def assembly(self) -> ResponsesAssembly:
        """Return a new assembly for a streamed answer."""
        return ResponsesAssembly()

    def response(self, raw: Mapping[str, Any]) -> Response:
        """Read a response. Raises LLMError if it failed, is not finished, or is not a response."""
        status = raw.get("status")
        if (error := error_of(raw, RESPONSES)) is not None or status == "failed":
            raise fault.of_answer(None, None, error or raw)
        if status not in ("completed", "incomplete", None):
            raise malformed(f"its status is {status!r}")
        if not isinstance(raw.get("output"), list):
            raise malformed("there is no output in it")
        items = objects(raw["output"])
        said = [item for item in items if item.get("type") == "message"]
        parts = [part for item in said for part in objects(item.get("content"))]
        content = _BETWEEN.join(map(_text_of, said)) if said else None
        thoughts = [item for item in items if item.get("type") == "reasoning"]
        kept = [dict(item) for item in thoughts if item.get("encrypted_content")]
        payload = {"type": "text", "text": content}
        response = Response(
            [*kept, *([payload] if content else ())] if kept else content,
            tuple(
                tool_call(item.get("call_id"), item.get("name"), item.get("arguments"))
                for item in items
                if item.get("type") == "function_call"
            ),
            _finish_reason(raw),
            usage(raw.get("usage")),
            text_or_none(raw.get("model")),
            text_or_none("".join(text(part.get("refusal")) for part in parts)),
            text_or_none("\n\n".join(filter(None, map(_thought, thoughts)))),
        )
        return checked(response, RESPONSES)


def _finish_reason(raw: Mapping[str, Any]) -> str | None:
    """Return the finish reason: the reason why the answer is incomplete, else the status."""
    reason = mapping(raw.get("incomplete_details")).get("reason")
    return finish_reason(reason) or finish_reason(raw.get("status"))


def _text_of(item: Mapping[str, Any]) -> str:
    return "".join(text(part.get("text")) for part in objects(item.get("content")))


def _thought(item: Mapping[str, Any]) -> str:
    parts = objects(item.get("summary")) or objects(item.get("content"))
    return "\n\n".join(text(part.get("text")) for part in parts)


# ---- requests ----


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the items of a message in this API."""
    if message.role == "tool":
        output = _parts(message.content) if isinstance(message.content, list) else message.content or ""
        yield {"type": "function_call_output", "call_id": message.tool_call_id or "", "output": output}
        return
    if message.role != "assistant":
        content = _parts(message.content) if isinstance(message.content, list) else message.content or ""
        yield {"role": message.role, "content": content}
        return
    parts = message.content if isinstance(message.content, list) else []
    if (
        message.text or message.refusal is not None or message.tool_calls
    ):  # the API requires an item after them
        yield from (part for part in parts if part.get("type") == "reasoning")
    if message.text:
        yield {"role": "assistant", "content": [{"type": "output_text", "text": message.text}]}
    if message.refusal is not None:
        yield {"role": "assistant", "content": [{"type": "refusal", "refusal": message.refusal}]}
    for call in message.tool_calls:
        yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _parts(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_part(part) for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a content part of chat in this API's form; a part that is already in this form stays unchanged."""
    match part:
        case {"type": "text", "text": said}:
            return {"type": "input_text", "text": said}
        case {"type": "image_url", "image_url": dict(image)}:
            more = {name: value for name, value in image.items() if name != "url"}
            return {"type": "input_image", "image_url": image.get("url"), **more}
        case {"type": "image_url", "image_url": str(url)}:
            return {"type": "input_image", "image_url": url}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case _:
            return part


def _tools(request: Request) -> dict[str, Any]:
    """Return the members for tools. Tools among the parameters belong to the provider, and stay."""
    if not request.tools:
        return {}
    offers = [
        {
            "type": "function",
            "name": offer.name,
            "description": offer.description,
            "parameters": dict(offer.parameters),
            "strict": False,
        }
        for offer in request.tools
    ]
    tools = {"tools": [*request.params.get("tools", ()), *offers]}
    if request.tool_choice == "auto":  # the default: the parameters decide
        return tools
    if request.tool_choice in ("none", "required"):
        return {**tools, "tool_choice": request.tool_choice}
    return {**tools, "tool_choice": {"type": "function", "name": request.tool_choice}}


# ---- streams ----


class ResponsesAssembly:
    """Assembles a response from its events.

    The last event holds the whole response; if a server leaves it empty, the items of the stream count, and the calls
    that came in pieces only.
    """

    def __init__(self) -> None:
        self.over = False
        self.ended = False
        self.size = 0
        self.others: list[ReasoningPiece | ArgumentsPiece] = []
        self._calls = CallAssembly()
        self._final: Mapping[str, Any] | None = None
        self._done: list[Mapping[str, Any]] = []
        self._said: list[str] = []
        self._position: object = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._said)

    def take(self, event: ServerSentEvent) -> str:
        """Add an event and return its new text."""
        if (
            event.data.strip() == CHAT.end_mark
        ):  # from compatible servers, also after a failure: it ends nothing
            return ""
        payload = parsed(event.data)
        if (error := error_of(payload, RESPONSES)) is not None:
            raise fault.of_answer(None, None, error, partial=self.text)
        payload = mapping(payload)
        kind = payload.get("type")
        if kind in RESPONSES.end_events:
            self.over, self.ended, self._final = True, True, mapping(payload.get("response"))
        elif kind == "response.output_item.done":
            self._done.append(mapping(payload.get("item")))
            self.size += kept_size(event.data)
        elif kind == "response.output_text.delta":
            return self._delta(payload)
        else:
            self._other(kind, payload)
        return ""

    def response(self) -> Response:
        """Return the response. Raises LLMError if the stream was cut or the response failed."""
        if self._final is None:
            raise fault.of_cut(self.text)
        raw = dict(self._final)
        if raw.get("status") == "failed":
            raise fault.of_answer(None, None, raw, partial=self.text)
        raw["output"] = raw.get("output") or [*self._done, *self._unfinished()]
        return ResponsesForm().response(raw)

    def _other(self, kind: object, payload: Mapping[str, Any]) -> None:
        """Keep the piece of an event that is not text."""
        piece = text(payload.get("delta"))
        if kind == "response.output_item.added":
            item = mapping(payload.get("item"))
            if item.get("type") == "function_call":
                self._fragment(payload, text(item.get("arguments")), item.get("call_id"), item.get("name"))
        elif kind in _THOUGHT and piece:
            self.others.append(ReasoningPiece(piece))
        elif kind == "response.function_call_arguments.delta" and piece:
            self._fragment(payload, piece)

    def _fragment(
        self, payload: Mapping[str, Any], given: str, id_: object = None, name: object = None
    ) -> None:
        before, function = self._calls.size, {"name": name, "arguments": given}
        fragment = {"index": payload.get("output_index"), "id": id_, "function": function}
        if (piece := self._calls.add(fragment)) is not None:
            self.others.append(piece)
        self.size += self._calls.size - before

    def _unfinished(self) -> list[dict[str, Any]]:
        """Return the calls that came in pieces, if the server sent none of them whole."""
        if any(item.get("type") == "function_call" for item in self._done):
            return []
        return [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in self._calls.calls()
        ]

    def _delta(self, payload: Mapping[str, Any]) -> str:
        position, piece = payload.get("output_index"), text(payload.get("delta"))
        if self._said and position != self._position:
            piece = _BETWEEN + piece
        self._position = position
        self._said.append(piece)
        self.size += kept_size(piece)
        return piece

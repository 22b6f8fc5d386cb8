"""Chat completions: OpenAI's older API, and the one that every compatible server implements.

Behaviour of real servers, and how it is handled (recordings in tests/data/provider_exchanges):

- Arguments of a call are kept exactly as received: an empty text, `null`, or cut off. `null` in place of text is "".
- A stream may never set a finish reason, or an empty one with each chunk: then `[DONE]` ends it. A stream with neither
  was cut. If text follows a finish reason, the server sends one with each chunk, and only `[DONE]` ends that stream.
  A finish reason alone in its chunk ends an answer even if the connection breaks; one beside a text does not.
- A whole completion may arrive as the event of a stream, or as the last one after its pieces, which it repeats.
- `call_assembly` joins the fragments of calls, from servers without indices or ids too.
- Usage arrives in a last chunk without choices, in the chunk before `[DONE]`, inside a choice, or never. Counts are
  numbers, whole floats or digits; anything else is not reported (`Response.usage` is None), and never 0.
- Reasoning is called `reasoning_content` or `reasoning`. It is sent back only under the name that the vendor requires
  (`chat_server`) or the host sets: OpenAI refuses unknown names, some servers refuse a history without it.
- Members that we do not know are kept and given back to the same server (`kept_member`).
- Content may be a list: texts, thinking, and parts inside a sentence (the references of Mistral). Texts and thinking
  are read, every other part is kept in its place.

`answer_signal` has the finish reasons that are failures, and the places of error objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from orchestrator.llm.content_part import CITATIONS, OPAQUE
from orchestrator.llm.message import (
    ArgumentsPiece,
    Content,
    Message,
    ReasoningPiece,
    Request,
    Response,
    ToolCall,
    Usage,
)
from orchestrator.providers import fault
from orchestrator.providers.answer_signal import CHAT, checked, error_of, finish_reason
from orchestrator.providers.call_assembly import CallAssembly
from orchestrator.providers.event_stream import ServerSentEvent
from orchestrator.providers.kept_member import KEPT, give_back, kept_part, merge, sign, unknown_members
from orchestrator.providers.member import token_count
from orchestrator.providers.openai_form import OpenAIOptions
from orchestrator.providers.openai_schema import named
from orchestrator.providers.parameter import with_extra
from orchestrator.providers.reading import (
    arguments,
    malformed,
    mapping,
    merged,
    objects,
    parsed,
    text,
    text_or_none,
    tool_call,
    usage,
)
from orchestrator.providers.schema_prompt import instructed
from orchestrator.providers.size_limit import kept_size


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Requests and answers of chat completions."""

    signals: ClassVar = CHAT
    options: OpenAIOptions = field(default_factory=OpenAIOptions)

    def body(self, model: str, request: Request, *, streamed: bool) -> dict[str, Any]:
        """Return the body of the request; the host's parameters are passed unchanged, ours override them."""
        native, prompted = self.options.schema(request)
        messages = request.messages if prompted is None else instructed(request.messages, prompted)
        body: dict[str, Any] = {
            **with_extra(request.params),
            "model": model,
            "messages": [self._message(message, model) for message in _with_results_as_text(messages)],
        }
        body.update(_tools(request))
        if native is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": named(native)}
        body["stream"] = streamed
        if streamed and self.options.stream_usage:
            body["stream_options"] = {**mapping(body.get("stream_options")), "include_usage": True}
        return body

    def assembly(self) -> ChatAssembly:
        """Return a new assembly for a streamed answer."""
        return ChatAssembly(self)

    def response(self, raw: Mapping[str, Any]) -> Response:
        """Read a completion. Raises LLMError for an error object, and for a completion without a message."""
        if (error := error_of(raw, CHAT)) is not None:
            raise fault.of_answer(None, None, error)
        choices = objects(raw.get("choices"))
        if not choices:
            raise malformed("there is no choice in it")
        message = choices[0].get("message")
        if not isinstance(message, Mapping):
            raise malformed("there is no message in it")
        content, thought = _content(message.get("content"))
        if (
            (content or message.get("tool_calls"))
            and self.options.host
            and self.options.server.returns_members
        ):
            part = kept_part(self.options.host, message, objects(message.get("tool_calls")))
            said = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
            content = content if part is None else [part, *(one for one in said if one.get("text") != "")]
        response = Response(
            content,
            _calls(message),
            finish_reason(choices[0].get("finish_reason")),
            _usage(raw),
            text_or_none(raw.get("model")),
            text_or_none(message.get("refusal")),
            _reasoning(message) or thought,
        )
        return checked(response, CHAT)

    def _message(self, message: Message, model: str) -> dict[str, Any]:
        raw, server, kept = message.to_openai(strict=True), self.options.server, None
        if isinstance(raw["content"], list):
            kept = next((part for part in raw["content"] if part.get("type") == KEPT), None)
            dropped = OPAQUE if server.takes_citations else OPAQUE | CITATIONS
            parts = [part for part in raw["content"] if part.get("type") not in dropped]
            cited = any(part.get("type") in CITATIONS for part in raw["content"])
            only_text = (kept is not None or cited) and all(part.get("type") == "text" for part in parts)
            raw["content"] = (message.text if only_text else parts) or None
        if raw["content"] is None and not message.tool_calls and message.refusal is None:
            raw["content"] = ""  # the API requires one of the three, and an empty answer stays in the history
        if kept is not None and server.returns_members and kept.get("server") == self.options.host:
            give_back(raw, kept)
        if server.signed_calls:
            sign(raw, model)
        name = (
            server.reasoning_field if self.options.reasoning_field is None else self.options.reasoning_field
        )
        if name and (message.reasoning is not None or (server.reasoning_required and message.tool_calls)):
            raw[name] = message.reasoning or ""
        return raw


def _with_results_as_text(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages; the API allows only text in results, so their other parts follow as a user message."""
    moved: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "tool" and moved:
            yield Message("user", moved)
            moved = []
        parts = message.content if message.role == "tool" and isinstance(message.content, list) else []
        others = [part for part in parts if part.get("type") != "text"]
        if not others:
            yield message
            continue
        about = f"Content of the result of call {message.tool_call_id or message.name}:"
        moved += [{"type": "text", "text": about}, *others]
        yield replace(message, content=message.text or "The result is in the next user message.")
    if moved:
        yield Message("user", moved)


def _tools(request: Request) -> dict[str, Any]:
    """Return the members for tools. Tools among the parameters belong to the provider, and stay."""
    if not request.tools:
        return {}
    offers = [
        {
            "type": "function",
            "function": {
                "name": offer.name,
                "description": offer.description,
                "parameters": dict(offer.parameters),
            },
        }
        for offer in request.tools
    ]
    tools = {"tools": [*request.params.get("tools", ()), *offers]}
    if request.tool_choice == "auto":  # the default: the parameters decide
        return tools
    if request.tool_choice in ("none", "required"):
        return {**tools, "tool_choice": request.tool_choice}
    return {**tools, "tool_choice": {"type": "function", "function": {"name": request.tool_choice}}}


# ---- answers ----


def _content(content: object) -> tuple[Content, str | None]:
    """Return content and reasoning. The content is text, unless a list has parts that are neither text nor thinking."""
    if not isinstance(content, list):
        return (content if isinstance(content, str) else None), None
    listed = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    thoughts = [_thought(part) for part in objects(listed) if part.get("type") == "thinking"]
    parts = merged(
        {**part, "text": text(part.get("text"))} if part.get("type") == "text" else dict(part)
        for part in objects(listed)
        if part.get("type") != "thinking"
    )
    if all(part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts), "".join(thoughts) or None
    return [part for part in parts if part.get("text") != "" or part["type"] != "text"], "".join(
        thoughts
    ) or None


def _usage(raw: Mapping[str, Any]) -> Usage | None:
    """Return the usage of a completion or of a chunk, from wherever a server puts it; None if it reports none."""
    places = [raw.get("usage"), mapping(raw.get("x_groq")).get("usage")]  # x_groq: Groq, in streams
    places += [choice.get("usage") for choice in objects(raw.get("choices"))[:1]]  # Moonshot, in streams
    timings = mapping(raw.get("timings"))  # llama.cpp, also without `stream_options`
    if "cache_n" in timings:  # an older version does not count the tokens that it had in its cache
        cached = token_count(timings["cache_n"]) or 0
        places.append(
            {
                "prompt_tokens": (token_count(timings.get("prompt_n")) or 0) + cached,
                "completion_tokens": timings.get("predicted_n"),
                "cached_tokens": cached,
            }
        )
    return next((found for place in places if (found := usage(place)) is not None), None)


def _thought(part: Mapping[str, Any]) -> str:
    inner = part.get("thinking")
    return text(inner) or "".join(text(one.get("text")) for one in objects(inner))


def _reasoning(message: Mapping[str, Any]) -> str | None:
    return text_or_none(message.get("reasoning_content")) or text_or_none(message.get("reasoning"))


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    calls = objects(message.get("tool_calls"))
    if not calls:
        legacy = mapping(message.get("function_call"))
        return (tool_call("", legacy["name"], legacy.get("arguments")),) if legacy.get("name") else ()
    functions = [mapping(call.get("function")) for call in calls]
    return tuple(
        tool_call(call.get("id"), function.get("name"), function.get("arguments"))
        for call, function in zip(calls, functions, strict=True)
    )


# ---- streams ----


class ChatAssembly:
    """Assembles a completion from its chunks."""

    def __init__(self, form: ChatForm) -> None:
        self.over = False
        self.ended = False
        self.size = 0
        self.others: list[ReasoningPiece | ArgumentsPiece] = []
        self._form = form
        self._members: dict[str, Any] = {}
        """Members of the message that are not part of the API."""
        self._model: str | None = None
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._finished = False
        """Nothing was added since the finish reason. A reason beside a text may be one that each chunk has."""
        self._premature = False
        """Something was added after a finish reason, so that only the end mark ends this stream."""
        self._begun = False
        self._parts: list[str | dict[str, Any]] | None = None
        """The content in pieces of text and other parts; None as long as there is none."""
        self._refused: list[str] = []
        self._thought: list[str] = []
        self._calls = CallAssembly()
        self._legacy_name: list[str] = []
        self._legacy_arguments: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(part for part in self._parts or () if isinstance(part, str))

    def take(self, event: ServerSentEvent) -> str:
        """Add a chunk and return its new text."""
        if event.data.strip() == CHAT.end_mark:
            self.over = self.ended = True
            return ""
        chunk = parsed(event.data)
        if (error := error_of(chunk, CHAT)) is not None:
            raise fault.of_answer(None, None, error, partial=self.text)
        chunk = mapping(chunk)
        self._model = text_or_none(chunk.get("model")) or self._model
        self._usage = _usage(chunk) or self._usage
        for choice in objects(chunk.get("choices")):
            if not choice.get("index"):  # of several answers, the first
                return self._choice(choice)
        return ""

    def response(self) -> Response:
        """Return the completion. Raises LLMError if the stream was cut, aborted, or empty."""
        if not (self.ended or (self._finished and not self._premature)):
            raise fault.of_cut(self.text)
        message = {
            **self._members,
            "content": self._parts,
            "refusal": "".join(self._refused),
            "reasoning_content": "".join(self._thought),
            "tool_calls": self._calls.calls(),
            "function_call": {
                "name": "".join(self._legacy_name),
                "arguments": "".join(self._legacy_arguments),
            },
        }
        choices = [{"message": message, "finish_reason": self._finish}] if self._begun else []
        return replace(self._form.response({"model": self._model, "choices": choices}), usage=self._usage)

    def _choice(self, choice: Mapping[str, Any]) -> str:
        delta = mapping(choice.get("delta"))
        if (
            choice.get("delta") is None and not self.size
        ):  # a whole completion; after its pieces it only repeats them
            delta = mapping(choice.get("message"))
        size, self._begun = self.size, True
        said = self._delta(delta)
        added = self.size > size
        if added:
            self._premature = self._premature or self._finish is not None
            self._finished = self.ended = False
        if members := unknown_members(delta):
            merge(self._members, members)
            self.size += kept_size(str(members))
        reason = finish_reason(choice.get("finish_reason"))
        if reason is not None and not self._finished:
            self._finish, self._finished = reason, True
            self.ended = not (added or self._premature)
        return said

    def _delta(self, delta: Mapping[str, Any]) -> str:
        before = self._calls.size
        pieces = [self._calls.add(fragment) for fragment in objects(delta.get("tool_calls"))]
        self.others += (piece for piece in pieces if piece is not None)
        self.size += self._calls.size - before
        legacy = mapping(delta.get("function_call"))
        self._add(self._legacy_name, text(legacy.get("name")))
        self._add(self._legacy_arguments, arguments(legacy.get("arguments")))
        content, thought = _content(delta.get("content"))
        self._add(self._refused, text(delta.get("refusal")))
        if reasoning := _reasoning(delta) or thought:
            self._add(self._thought, reasoning)
            self.others.append(ReasoningPiece(reasoning))
        if content is None:
            return ""
        parts = self._parts = self._parts or []
        if isinstance(content, str):
            self._add(parts, content)
            return content
        for part in content:
            if part.get("type") == "text":
                self._add(parts, part["text"])
            else:
                parts.append(part)
                self.size += kept_size(str(part))
        return "".join(part["text"] for part in content if part.get("type") == "text")

    def _add(self, pieces: list[Any], piece: str) -> None:
        if piece:
            pieces.append(piece)
            self.size += kept_size(piece)

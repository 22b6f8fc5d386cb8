"""Models behind Anthropic's Messages API.

The API is stricter than conversations from other sources, or after a cut: roles alternate and the user is first,
inputs are objects, no text is empty, and called tools must be declared. This module repairs violations of these rules,
for this request only, and drops no information. `vendor_model` has repaired names, ids and results before.

- System and developer messages, at any position, become the `system` member.
- Results of a turn become one user message; arguments that are not a JSON object are sent as text, under
  `unparsed_arguments`.
- Thinking is sent back with its signature and at its position, or not at all: the API refuses it otherwise. It is
  stored in the content parts of the message; reasoning of other models is not sent.

- Input tokens are the total: the API counts tokens from and into the cache separately from `input_tokens`.
- An answer with thinking and calls keeps its content as a list of parts, thinking with its signature first: the API
  requires it back unchanged with the results. The same applies to blocks that are neither text nor call (the
  provider's own tools). Every other answer is its text. In both cases the thinking is in `reasoning`.
- The input of a streamed call is kept as received, even if cut off; an empty one becomes the arguments `{}`.
- A stream ends with `message_stop`, or with a stop reason in `message_delta` after which nothing is added. Proxies end
  it with `[DONE]`, also after a failure: without a stop reason that counts only if every block was closed.
- A refusal (`stop_reason`) is an answer with `refusal` set; an answer without any block has no content.

    pip install "fsm-orchestrator[anthropic]"

`fault` classifies failures.
"""

from __future__ import annotations

import inspect
import json
from base64 import b64decode
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import SecretStr

from orchestrator.errors import ConfigError, LLMError, MissingExtra
from orchestrator.llm.message import (
    CITATIONS,
    NO_USAGE,
    ArgumentsPiece,
    Content,
    Message,
    ReasoningPiece,
    Request,
    Response,
    ToolCall,
    Usage,
    data_of,
    encodable,
)
from orchestrator.providers import fault
from orchestrator.providers.connection import (
    CONNECT_SECONDS,
    DEFAULT_BYTES,
    check_model,
    check_total_timeout,
    kept_size,
    key_of,
    provider_name,
    shared_context,
)
from orchestrator.providers.reading import (
    MESSAGES,
    ServerSentEvent,
    argument_object,
    checked,
    error_of,
    finish_reason,
    malformed,
    mapping,
    merged,
    parsed,
    parts_of,
    position_of,
    text,
    text_or_none,
    token_count,
)
from orchestrator.providers.structured_output import instructed, is_object
from orchestrator.providers.vendor_model import (
    BEGINNING,
    SdkModel,
    check_cache_seconds,
    checked_kinds,
    with_breakpoints,
    with_extra,
)

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

Block = dict[str, Any]


def conversation(messages: Iterable[Message]) -> tuple[list[Block], list[Block]]:
    """Return the blocks of `system` and the messages."""
    system: list[Block] = []
    made = _Turns()
    for message in messages:
        if message.role in ("system", "developer"):
            system += _blocks(message.content)
        elif message.role == "user":
            made.said(_blocks(message.content))
        elif message.role == "assistant":
            made.answered(message)
        else:
            made.result(message)
    return system, made.finished()


def tools(request: Request, messages: Sequence[Block]) -> dict[str, Any]:
    """Return the members for tools. Tools among the parameters belong to the provider, and stay."""
    own = list(request.params.get("tools") or ())
    offers = [_tool(offer.name, offer.description, offer.parameters) for offer in request.tools]
    if not offers and not own:
        called = {
            block["name"]
            for message in messages
            for block in message["content"]
            if block["type"] == "tool_use"
        }
        if not called:
            return {}
        # The history shows calls, so they must be declared, and no tool may be called.
        declared = [_tool(name, "", {}) for name in sorted(called)]
        return {"tools": declared, "tool_choice": {"type": "none"}}
    return {"tools": [*own, *offers], **_choice(request)}


def _choice(request: Request) -> dict[str, Any]:
    """Return the choice of tools; nothing for auto, the default, so that the parameters decide."""
    if request.tool_choice == "auto":
        return {}
    if request.tool_choice == "none":
        return {"tool_choice": {"type": "none"}}
    asked = request.params.get("tool_choice")
    kept = {"disable_parallel_tool_use": True} if mapping(asked).get("disable_parallel_tool_use") else {}
    if request.tool_choice == "required":
        return {"tool_choice": {"type": "any", **kept}}
    return {"tool_choice": {"type": "tool", "name": request.tool_choice, **kept}}


def _tool(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    about = {"description": description} if description else {}
    return {"name": name, **about, "input_schema": {"type": "object", **parameters}}


class _Turns:
    """Builds messages with alternating roles."""

    def __init__(self) -> None:
        self._messages: list[Block] = []

    def said(self, blocks: list[Block]) -> None:
        if blocks:
            self._add("user", blocks)

    def answered(self, message: Message) -> None:
        blocks = _blocks(message.content) or _blocks(message.refusal)
        if not blocks and not message.tool_calls:
            return  # an empty answer has no form here
        if not self._messages:
            self._add("user", [{"type": "text", "text": BEGINNING}])
        calls = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": argument_object(call.arguments)}
            for call in message.tool_calls
        ]
        self._add("assistant", [*blocks, *calls])

    def result(self, message: Message) -> None:
        result: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        if content := _blocks(message.content):
            only_text = len(content) == 1 and content[0].keys() == {"type", "text"}
            result["content"] = content[0]["text"] if only_text else content
        if message.is_error:
            result["is_error"] = True
        self._add("user", [result])

    def finished(self) -> list[Block]:
        if not self._messages:
            self._add("user", [{"type": "text", "text": BEGINNING}])
        return self._messages

    def _add(self, role: str, blocks: list[Block]) -> None:
        if self._messages and self._messages[-1]["role"] == role:
            self._messages[-1]["content"] += blocks
        else:
            self._messages.append({"role": role, "content": [*blocks]})


# ---- content ----


def _blocks(content: Content) -> list[Block]:
    """Return content as blocks: texts that are not empty, images in this API's form, all else unchanged."""
    if content is None:
        return []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [block for part in parts if (block := _block(part)) is not None]


def _block(part: Mapping[str, Any]) -> Block | None:
    kind = part.get("type")
    if kind == "text":
        return dict(part) if str(part.get("text") or "").strip() else None
    if kind == "image_url":
        given = part.get("image_url")
        url = given.get("url") if isinstance(given, Mapping) else given
        if not isinstance(url, str):
            return dict(part)
        kept = {name: value for name, value in part.items() if name == "cache_control"}
        if data := data_of(url):
            source = {"type": "base64", "media_type": data[0], "data": data[1]}
        else:
            source = {"type": "url", "url": url}
        return {"type": "image", "source": source, **kept}
    if kind == "file":
        given = mapping(part.get("file"))
        data = data_of(str(given.get("file_data") or ""))
        if data is None:
            raise ConfigError(
                "Anthropic reads files from their bytes only; give file_data as a data URL with base64"
            )
        media, encoded = data
        if media == "application/pdf":
            source = {"type": "base64", "media_type": media, "data": encoded}
        elif media.startswith("text/"):
            text = b64decode(encoded).decode(errors="replace")
            source = {"type": "text", "media_type": "text/plain", "data": text}
        else:
            raise ConfigError(
                f"Anthropic cannot read a file of type {media!r}; possible: application/pdf and text/*"
            )
        title = {"title": given["filename"]} if given.get("filename") else {}
        return {"type": "document", "source": source, **title}
    if kind in ("reasoning", "pydantic_ai", "openai_chat", *CITATIONS) or (
        kind == "thinking" and not part.get("signature")
    ):
        return None  # another vendor's: only the API that made it accepts it back
    return dict(part)


_THINKING = frozenset(("thinking", "redacted_thinking"))
_PLAIN = frozenset(("text", "tool_use"))
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens_details",
)
_CUT_INPUT = "partial_json"
"""Member of an unfinished block: the text of its input so far."""


def response_of(raw: Mapping[str, Any]) -> Response:
    """Read a message. Raises LLMError for an error object, and for anything but a message."""
    if (error := error_of(raw, MESSAGES)) is not None:
        raise fault.of_answer(None, None, error)
    if not isinstance(raw.get("content"), list):
        raise malformed("there is no content in it")
    blocks = parts_of(raw["content"])
    calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
    thought = "\n\n".join(filter(None, (text(block.get("thinking")) for block in blocks)))
    stop = finish_reason(raw.get("stop_reason"))
    response = Response(
        _content(blocks, keeps_thinking=bool(calls) or stop == "pause_turn"),
        calls,
        stop,
        usage_of(mapping(raw.get("usage"))),
        text_or_none(raw.get("model")),
        _refusal(mapping(raw.get("stop_details"))) if stop == "refusal" else None,
        thought or None,
    )
    return checked(response, MESSAGES)


def usage_of(usage: Mapping[str, Any]) -> Usage | None:
    """Return the tokens of an answer, with those from and into the cache in its input; None without both counts."""
    sent, received = (token_count(usage.get(f"{way}_tokens")) for way in ("input", "output"))
    if sent is None or received is None:
        return None
    read, written = (token_count(usage.get(f"cache_{way}_input_tokens")) or 0 for way in ("read", "creation"))
    return Usage(
        sent + read + written,
        received,
        read,
        token_count(mapping(usage.get("output_tokens_details")).get("thinking_tokens")) or 0,
        cache_write_tokens=written,
    )


def _content(blocks: list[Mapping[str, Any]], *, keeps_thinking: bool) -> Content:
    kinds = {block.get("type") for block in blocks}
    if kinds - _PLAIN - _THINKING or (keeps_thinking and kinds & _THINKING):
        return merged(_whole(block) for block in blocks if block.get("type") != "tool_use")
    said = [text(block.get("text")) for block in blocks if block.get("type") == "text"]
    return "".join(said) if said else None


def _whole(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block in the form that the API accepts back: with its input, if that came in pieces."""
    whole = {name: value for name, value in block.items() if name != _CUT_INPUT}
    if _CUT_INPUT in block:
        with suppress(ValueError):
            whole["input"] = parsed(text(block[_CUT_INPUT]))
    return whole


def _call(block: Mapping[str, Any]) -> ToolCall:
    given = block.get("input")
    written = text(block.get(_CUT_INPUT)) or json.dumps({} if given is None else given, ensure_ascii=False)
    return ToolCall(text(block.get("id")), text(block.get("name")), written)


def _refusal(details: Mapping[str, Any]) -> str:
    category = text(details.get("category"))
    return text(details.get("explanation")) or f"the model declined to answer{category and f' ({category})'}"


_PIECES = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("partial_json", _CUT_INPUT),
    "thinking_delta": ("thinking", "thinking"),
}
"""Type of a delta -> its member, and the member of the block that it extends."""

_EXTENDED = {
    "text_delta": "text",
    "citations_delta": "text",
    "input_json_delta": "tool_use",  # also of the provider's own tools: server_tool_use, mcp_tool_use
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}
"""Type of a delta -> end of the type of the block that it extends."""


@dataclass(slots=True)
class _Block:
    """An unfinished block."""

    raw: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict)
    """Member of the block -> the texts received for it."""
    citations: list[Any] = field(default_factory=list)

    def whole(self) -> dict[str, Any]:
        """Return the block as received, with all additions."""
        added = {name: text(self.raw.get(name)) + "".join(pieces) for name, pieces in self.pieces.items()}
        cited = [*(self.raw.get("citations") or ()), *self.citations]
        return {**self.raw, **added, **({"citations": cited} if self.citations else {})}


class MessageAssembly:
    """Assembles a message from its events."""

    def __init__(self) -> None:
        self.over = False
        self.ended = False
        self.size = 0
        self.others: list[ReasoningPiece | ArgumentsPiece] = []
        self._raw: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._at: dict[int | None, list[_Block]] = {}
        """Index -> blocks; some servers give every block the index 0, or none."""
        self._open = False
        """The last block was started and not stopped."""
        self._said: list[str] = []

    @property
    def response_id(self) -> str | None:
        """The id of the answer, from its first event."""
        return text_or_none(self._raw.get("id"))

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._said)

    def take(self, event: ServerSentEvent) -> str:
        """Add an event and return its new text."""
        if event.data.strip() == MESSAGES.end_mark:
            self.over, self.ended = True, self.ended or (bool(self._blocks) and not self._open)
            return ""
        raw = parsed(event.data)
        if (error := error_of(raw, MESSAGES)) is not None:
            raise fault.of_answer(None, None, error, partial=self.text)
        raw = mapping(raw)
        match raw.get("type"):
            case "message_start":
                message = mapping(raw.get("message"))
                self._raw.update(message)
                # Its output tokens are those of the beginning. The last event has the total.
                begun = mapping(message.get("usage"))
                self._count({name: count for name, count in begun.items() if name != "output_tokens"})
            case "content_block_start":
                self.size += kept_size(event.data)
                self.ended, self._open = False, True
                block = dict(mapping(raw.get("content_block")))
                self._start_block(position_of(raw.get("index")), block)
                return self._add_text(text(block.get("text")))
            case "content_block_delta":
                return self._delta(position_of(raw.get("index")), mapping(raw.get("delta")))
            case "message_delta":
                delta = mapping(raw.get("delta"))
                if finish_reason(delta.get("stop_reason")) is not None and not self.ended:
                    self._raw.update(delta)
                    self.ended = True
                self._count(mapping(raw.get("usage")))
            case "content_block_stop":
                self._open = False
            case kind if kind in MESSAGES.end_events:
                self.over = self.ended = True
        return ""

    def response(self) -> Response:
        """Return the message. Raises LLMError if the stream was cut or had no message."""
        if not self.ended:
            raise fault.of_cut(self.text)
        if not self._raw:
            raise malformed("there is no message in the stream")
        blocks = [block.whole() for block in self._blocks]
        return response_of({**self._raw, "content": blocks, "usage": self._usage})

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Update the counts: those of a stream are totals. Omitted ones stay; some proxies send 0 in place of them."""
        for name in _COUNTS:
            total = usage.get(name)
            if total or (total is not None and name not in self._usage):
                self._usage[name] = total

    def _add_text(self, piece: str) -> str:
        if piece:
            self._said.append(piece)
        return piece

    def _start_block(self, index: int | None, raw: dict[str, Any]) -> _Block:
        block = _Block(raw)
        self._blocks.append(block)
        self._at.setdefault(index, []).append(block)
        return block

    def _block(self, index: int | None, kind: object) -> _Block:
        """Return the block that a delta extends: the last one of its type at its index, else a new one."""
        wanted = _EXTENDED.get(kind, "") if isinstance(kind, str) else ""
        at = self._at.get(index) or (self._blocks if index is None else self._at.get(None))
        fitting = (block for block in reversed(at or ()) if text(block.raw.get("type")).endswith(wanted))
        return next(fitting, None) or self._start_block(index, {"type": wanted or "text"})

    def _delta(self, index: int | None, delta: Mapping[str, Any]) -> str:
        kind = delta.get("type")
        block = self._block(index, kind)
        self.ended = False
        if isinstance(kind, str) and kind in _PIECES:
            member, added_to = _PIECES[kind]
            piece = text(delta.get(member))
            block.pieces.setdefault(added_to, []).append(piece)
            self.size += kept_size(piece)
            if kind == "text_delta":
                return self._add_text(piece)
            self._other(block, kind, piece)
            return ""
        if kind == "signature_delta":
            block.raw["signature"] = text(delta.get("signature"))
        elif kind == "citations_delta":
            block.citations.append(delta.get("citation"))
            self.size += len(repr(delta))
        return ""

    def _other(self, block: _Block, kind: str, piece: str) -> None:
        """Keep a piece that is not text. The input of the provider's own tools is no piece of a call."""
        if piece and kind == "thinking_delta":
            self.others.append(ReasoningPiece(piece))
        elif piece and block.raw.get("type") == "tool_use":
            calls = (one for one in self._blocks if one.raw.get("type") == "tool_use")
            position = next(at for at, one in enumerate(calls) if one is block)
            self.others.append(ArgumentsPiece(position, text(block.raw.get("name")), piece))


_PAUSES = 10
_SAMPLING = frozenset(("temperature", "top_p", "top_k"))
_WITH_SAMPLING = "2023-06-01"


class Anthropic(SdkModel):
    """A model behind Anthropic's Messages API.

    The SDK decides the version of the API. Its 2026-10-21 refuses `temperature`, `top_p` and `top_k`: a request with
    one of these parameters uses 2023-06-01, under which models accept them if they do at all. If the API pauses an
    answer (`pause_turn`, its own tools at work), the model is asked again until the answer ends. Each event loop has
    its own connection pool, closed with the loop; `aclose()`, or `async with`, closes the pool of the running loop
    earlier.

    Args:
        model: Name of the model.
        base_url: Address before `/v1/messages`, a final `/v1` is dropped; None means ANTHROPIC_BASE_URL, else
            Anthropic's.
        api_key: The key; None means ANTHROPIC_API_KEY.
        client: The host's own client of the SDK (Bedrock, Vertex, another authentication, a proxy), with its own
            address, key and timeout. It is used with retries off, and not closed here.
        max_tokens: Maximum tokens of an answer, unless the parameters of a request set another number. The API
            requires it.
        timeout: Seconds without a byte from the server, including the wait for the first one. Connecting takes at
            most 5.
        total_timeout: Seconds that one request may take in all, whatever the server sends meanwhile. After that it is
            an LLMError (`timeout`), which is retried. None means nine tenths of the time that the state of the run has
            left.
        structured: `native`, or `prompt` to put an output schema into the prompt, for models without structured
            output. A schema that the API's mode cannot express always goes into the prompt.
        max_response_bytes: Maximum bytes, after decompression, of a body, of each event of a stream, and of the
            stored part of a stream; 0 is no limit. A larger answer is an LLMError (`malformed`) that is not retried.
        reads: Kinds of content parts that the model reads, of `text`, `image`, `file` and `audio`; None means all
            that the API carries. A request with another part is a ConfigError and is not sent.
        cache_seconds: How long the API caches the beginning of the prompt: 300 or 3600; 0 sends no hints. A message
            or a tool with a `cache_control` of the host turns our hints off.
        provider: Name of the provider in metrics, spans and price lookups, if possible a value of
            `gen_ai.provider.name` in OpenTelemetry; None takes it from the address, else `anthropic`.

    Raises:
        ConfigError: An argument cannot work.
        MissingExtra: The extra is not installed (an ImportError).

    Example:
        llm = Anthropic("claude-haiku-4-5")                                  # the key from ANTHROPIC_API_KEY
        llm = Anthropic("claude-sonnet-4-6", max_tokens=16_000, timeout=120)
        llm = Anthropic("claude-haiku-4-5", client=AsyncAnthropicBedrock())  # the host's own client
        agent = Agent(llm, tools=[search])
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        client: AsyncAnthropic | None = None,
        max_tokens: int = 4096,
        timeout: float = 600.0,
        total_timeout: float | None = None,
        structured: Literal["native", "prompt"] = "native",
        max_response_bytes: int = DEFAULT_BYTES,
        reads: Collection[str] | None = None,
        cache_seconds: int = 300,
        provider: str | None = None,
    ) -> None:
        try:
            import anthropic  # noqa: F401
        except ImportError as error:
            raise MissingExtra("anthropic", "anthropic", "providers") from error
        check_model(model, structured, timeout, base_url)
        kinds = checked_kinds(reads, ("text", "image", "file"))
        if max_tokens < 1:
            raise ConfigError(f"max_tokens is {max_tokens!r}; possible: 1 or more")
        # Whether it is one of the SDK's asynchronous clients: Bedrock's and others have no common base class.
        if client is not None and not (
            hasattr(client, "messages") and inspect.iscoroutinefunction(getattr(client, "close", None))
        ):
            raise ConfigError(f"client is a {type(client).__name__}; possible: anthropic.AsyncAnthropic")
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigError("client brings its own address and key: give base_url and api_key to it")
        self.base_url = None if base_url is None else base_url.rstrip("/").removesuffix("/v1")
        self.timeout = timeout
        self.total_timeout = check_total_timeout(total_timeout)
        self.cache_seconds = check_cache_seconds(cache_seconds)
        self.max_output_tokens = max_tokens
        form = MessagesForm(max_tokens, structured)
        if client is None:
            super().__init__(model, form, key_of("Anthropic", api_key, base_url), None, max_response_bytes)
        else:
            known = SecretStr(getattr(client, "api_key", None) or "")
            super().__init__(model, form, known, client.with_options(max_retries=0), max_response_bytes)
        self.reads = kinds
        self.provider = provider_name(provider, "anthropic", self.address)

    variables = "ANTHROPIC"

    def __repr__(self) -> str:
        return f"Anthropic({self.model!r})"

    async def _answered(self, request: Request) -> Response:
        response = await super()._answered(request)
        for _ in range(_PAUSES):
            if response.finish_reason != "pause_turn":
                break
            paused = replace(request, messages=[*request.messages, response.message()])
            # One answer from a paused one and its continuation.
            try:
                then = await super()._answered(paused)
            except LLMError as error:
                if response.usage is not None:
                    error.usage = response.usage + (error.usage or NO_USAGE)
                raise
            content = merged([*_parts(response), *_parts(then)])
            reasoning = "\n\n".join(filter(None, (response.reasoning, then.reasoning)))
            used = response.usage + then.usage if response.usage and then.usage else None
            response = replace(then, content=content, usage=used, reasoning=reasoning or None)
        return response

    def _new_client(self) -> Any:
        import anthropic

        timeout = anthropic.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS))
        try:
            return anthropic.AsyncAnthropic(
                api_key=self._key.get_secret_value(),
                base_url=self.base_url,
                timeout=timeout,
                max_retries=0,
                # Do not follow a redirect to an address that the host did not configure.
                http_client=anthropic.DefaultAsyncHttpxClient(
                    timeout=timeout,
                    follow_redirects=False,
                    verify=shared_context(anthropic.DefaultAsyncHttpxClient),
                ),
            )
        except anthropic.AnthropicError as error:
            raise ConfigError(f"no client for Anthropic: {error}") from error

    def _with_cache_hints(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        del request
        return with_breakpoints(body, self.cache_seconds)

    def _parameters(self) -> Collection[str]:
        return _known_parameters() | _SAMPLING

    def _resource(self, client: Any) -> Any:
        return client.messages

    def _sendable(self, client: Any, body: dict[str, Any]) -> dict[str, Any]:
        body = encodable(body)
        names: tuple[str, ...] = ("model", "max_tokens", "stream")
        named: dict[str, Any] = {name: body[name] for name in names if name in body}
        named["messages"] = []  # the body's messages count: the SDK would check each of these, for 0.3 ms
        if not body.keys().isdisjoint(_SAMPLING):
            named["extra_headers"] = {"anthropic-version": _WITH_SAMPLING}
        # Set for each call: without it the SDK estimates the duration of an answer, and refuses long ones.
        return {**named, "extra_body": body, "timeout": client.timeout}


@cache
def _known_parameters() -> frozenset[str]:
    from anthropic.types.message_create_params import MessageCreateParamsBase

    return MessageCreateParamsBase.__required_keys__ | MessageCreateParamsBase.__optional_keys__


@dataclass(frozen=True, slots=True)
class MessagesForm:
    """Requests and answers of the Messages API."""

    signals: ClassVar = MESSAGES
    max_tokens: int = 4096
    structured: Literal["native", "prompt"] = "native"

    def body(self, model: str, request: Request, *, streamed: bool) -> dict[str, Any]:
        """Return the body of the request; the host's parameters are passed unchanged, ours override them."""
        messages, schema = request.messages, None
        if request.output_schema is not None:
            schema = native_schema(request.output_schema) if self.structured == "native" else None
            messages = messages if schema is not None else instructed(messages, request.output_schema)
        system, turns = conversation(messages)
        body: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            **with_extra(request.params),
            "model": model,
            "messages": turns,
        }
        own = body.pop("system", None) or []
        if told := [*([{"type": "text", "text": own}] if isinstance(own, str) else own), *system]:
            body["system"] = told
        body.update(tools(request, turns))
        if schema is not None:
            form = {"type": "json_schema", "schema": schema}
            body["output_config"] = {**mapping(body.get("output_config")), "format": form}
        body.pop("stream", None)
        return {**body, "stream": True} if streamed else body

    def response(self, raw: Mapping[str, Any]) -> Response:
        """Read a message. Raises LLMError if it is not one."""
        return response_of(raw)

    def assembly(self) -> MessageAssembly:
        """Return a new assembly for a streamed answer."""
        return MessageAssembly()


def native_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema for the API's own mode, or None if the mode would change its meaning.

    The mode supports only closed objects, no recursion, and few limits. The SDK closes objects and writes limits into
    descriptions; both leave every answer valid for the original schema, or for our check to refuse. A schema that it
    would change in meaning (an object with any keys, a recursive schema) goes into the prompt.
    """
    from anthropic import transform_schema

    if not is_object(schema) or _is_open(schema) or _is_recursive(schema):
        return None
    try:
        return transform_schema(dict(schema))
    except Exception:  # noqa: BLE001  the SDK raises many errors for an unknown schema
        return None


def _is_open(schema: object) -> bool:
    if isinstance(schema, list):
        return any(map(_is_open, schema))
    if not isinstance(schema, Mapping):
        return False
    more = schema.get("additionalProperties", False)
    is_schema = isinstance(more, bool | Mapping)  # else it is a property of that name
    return (is_schema and more is not False) or any(map(_is_open, schema.values()))


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether a reference leads back to a schema that contains it."""
    definitions = {
        f"#/{place}/{name}": inner
        for place in ("$defs", "definitions")
        for name, inner in mapping(schema.get(place)).items()
    }
    top = {name: inner for name, inner in schema.items() if name not in ("$defs", "definitions")}

    def leads_back(part: object, enclosing: frozenset[str]) -> bool:
        if isinstance(part, list):
            return any(leads_back(inner, enclosing) for inner in part)
        if not isinstance(part, Mapping):
            return False
        reference = part.get("$ref")
        if isinstance(reference, str):
            return reference in enclosing or leads_back(definitions.get(reference), enclosing | {reference})
        return any(leads_back(inner, enclosing) for inner in part.values())

    return leads_back(top, frozenset(("#",)))


def _parts(response: Response) -> list[dict[str, Any]]:
    if isinstance(response.content, str):
        return [{"type": "text", "text": response.content}]
    return response.content or []

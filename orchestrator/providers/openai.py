"""Models behind OpenAI's API, and behind the many servers that implement it.

Servers implement OpenAI's API with rules of their own. `OpenAI` finds the rules by the host of its address; a host
that reaches a vendor through a proxy of its own names the vendor with `provider`. A server without a row has no rules.

Behaviour of real servers, and how it is handled (recordings in tests/data/provider_exchanges):

- Arguments of a call are kept exactly as received: an empty text, `null`, or cut off. `null` in place of text is "".
  They are sent back as an object (`sendable_arguments`), other text under `unparsed_arguments`.
- A stream may never set a finish reason, or an empty one with each chunk: then `[DONE]` ends it. A stream with neither
  was cut. If text follows a finish reason, the server sends one with each chunk, and only `[DONE]` ends that stream.
  A finish reason alone in its chunk ends an answer even if the connection breaks; one beside a text does not.
- A whole completion may arrive as the event of a stream, or as the last one after its pieces, which it repeats.
- `CallAssembly` joins the fragments of calls, from servers without indices or ids too.
- Usage arrives in a last chunk without choices, in the chunk before `[DONE]`, inside a choice, or never. Counts are
  numbers, whole floats or digits; anything else is not reported (`Response.usage` is None), and never 0.
- Reasoning is called `reasoning_content` or `reasoning`. It is sent back only under the name that the vendor requires
  (`ChatServer`) or the host sets: OpenAI refuses unknown names, some servers refuse a history without it.
- Members that we do not know are kept and given back to the same server (`kept_part`).
- Content may be a list: texts, thinking, and parts inside a sentence (the references of Mistral). Texts and thinking
  are read, every other part is kept in its place.

`reading` has the finish reasons that are failures, and the places of error objects.

Gemini refuses the next request without the signature of a call (`extra_content.google.thought_signature`), OpenRouter
loses the reasoning of a model without its `reasoning_details`, LiteLLM has `provider_specific_fields`. What we do not
know is therefore kept: the content of the message has a part of the type `openai_chat` with these members and the host
of their server. The part is journalled with the message and sent back to the same server only; every other adapter
leaves it out, and compaction drops it together with the calls that it belongs to.

OpenAI gives each call an index and sends id and name with its first fragment only. Other servers leave out the index,
give every call the index 0, repeat id or name with each fragment, send a new id with each, or no id at all.

- Distinct indices are distinct calls; the text `"1"` is the number 1.
- If the index is missing or repeats, distinct ids with names are distinct calls.
- If the id is missing or repeats as well, a name starts another call if the present arguments are complete, or if there
  are none yet and the name differs. The same id with the same name never starts one.
- A fragment without name and id belongs to the last call.
- Fragments that came as separate calls of one tool are one call if none of them is complete and all of them together
  are: the server sent a new id with each.

Where this decides wrong, because the server sent too little, the arguments are no JSON or the name is unknown, and the
model reads the error.

`previous_response_id` is not used, and `store` is false unless the parameters set it. The journal is the truth about
a run, so a resume in another process or a fork must not depend on data that a provider stored, and data that is
stored nowhere cannot leak. A stateless conversation must send back:

- Calls and their results, as `function_call` and `function_call_output`, linked by `call_id`. The ids of items are
  not sent: with one, the API requires the reasoning item that preceded it.
- Reasoning items with `encrypted_content`, unchanged: the model continues from them after a tool's result. The API
  returns them only if the parameters ask (`include=["reasoning.encrypted_content"]`, which models without reasoning
  refuse). They are stored as a part of the message's content, so that they are journalled with it. Other reasoning,
  and that of another model, is not sent back.

Tools are declared with `strict: false`: the default here would change their parameters.

    pip install "fsm-orchestrator[openai]"

The SDK does transport, authentication and addresses, with its retries off: `RetryPolicy` is the only retry layer.
`fault` classifies failures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr

from orchestrator.errors import ConfigError, LLMError, MissingExtra
from orchestrator.llm.message import (
    CITATIONS,
    KINDS,
    OPAQUE,
    ArgumentsPiece,
    Content,
    Message,
    ReasoningPiece,
    Request,
    Response,
    ToolCall,
    Usage,
    encodable,
)
from orchestrator.providers import fault, structured_output
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
    CHAT,
    RESPONSES,
    ServerSentEvent,
    arguments,
    checked,
    error_of,
    finish_reason,
    malformed,
    mapping,
    merged,
    objects,
    parsed,
    parts_of,
    position_of,
    sendable_arguments,
    text,
    text_or_none,
    token_count,
    tool_call,
    usage,
)
from orchestrator.providers.structured_output import instructed, named
from orchestrator.providers.vendor_model import ApiForm, SdkModel, cache_key, checked_kinds, with_extra

if TYPE_CHECKING:
    from openai import AsyncOpenAI


# ---- calls in pieces, and members that only their server understands ----

KEPT: Final = "openai_chat"
"""Type of the content part with the members."""
MAX_BYTES: Final = 256 * 1024
"""Maximum size of the members of one answer, as JSON; others are left out."""
PLACEHOLDER: Final = "skip_thought_signature_validator"
"""The signature that Gemini documents for a call that it did not make."""
_MESSAGE: Final = frozenset(
    (
        *(
            "role",
            "content",
            "name",
            "refusal",
            "reasoning",
            "reasoning_content",
            "tool_calls",
            "function_call",
        ),
        *("audio", "annotations", "parsed"),
    )
)
_CALL: Final = frozenset(("id", "type", "index", "function"))
_FUNCTION: Final = frozenset(("name", "arguments"))
_GROWING: Final = frozenset(("text", "summary", "data", "thinking"))
"""Members of an item that a stream sends in pieces."""
_WITHOUT_SIGNATURES: Final = re.compile(r"(?:.*/)?gemini-[12]\b")


def unknown_members(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an answer's message, or of a piece of it, that are not part of the API."""
    found = {name: value for name, value in message.items() if name not in _MESSAGE and _says(value)}
    if "thought" in mapping(mapping(found.get("extra_content")).get("google")):
        # Of a piece that is a thought of Gemini; the whole message is none.
        google = {
            name: value for name, value in found["extra_content"]["google"].items() if name != "thought"
        }
        found["extra_content"] = {**found["extra_content"], "google": google}
    return {name: value for name, value in found.items() if _says(value)}


def unknown_members_of_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a call, or of a fragment of it, that are not part of the API."""
    function = mapping(call.get("function"))
    inner = {name: value for name, value in function.items() if name not in _FUNCTION and _says(value)}
    outer = {name: value for name, value in call.items() if name not in _CALL and _says(value)}
    return {**outer, "function": inner} if inner else outer


def merge(members: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the members of a further piece of an answer: objects and lists grow, other values are replaced."""
    with suppress(RecursionError):  # nested too deep to be stored
        _merge(members, more)


def kept_part(
    server: str, message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the content part with the members of an answer; None if it has none."""
    left, left_out = MAX_BYTES, []

    def fits(name: str, value: object) -> bool:
        nonlocal left
        try:
            size = len(orjson.dumps(encodable(value)))
        except (TypeError, RecursionError):  # too deep, or a number that no journal stores
            size = left + 1
        if size > left:
            left_out.append(name)
            return False
        left -= size
        return True

    of_calls = [
        {name: value for name, value in unknown_members_of_call(call).items() if fits(name, value)}
        for call in calls
    ]
    of_message = {name: value for name, value in unknown_members(message).items() if fits(name, value)}
    if not (of_message or any(of_calls) or left_out):
        return None
    part = {"type": KEPT, "server": server, "message": of_message, "calls": of_calls}
    return {**part, "left_out": left_out} if left_out else part


def give_back(raw: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add kept members to a message that is sent to their server again."""
    for name, value in mapping(part.get("message")).items():
        raw.setdefault(name, value)
    calls, members = raw.get("tool_calls") or [], objects(part.get("calls"))
    for call, more in zip(calls, members, strict=True) if len(calls) == len(members) else ():
        merge(call, more)


def sign(raw: dict[str, Any], model: str) -> None:
    """Add the placeholder to the calls of a message that another model made: to the first, as Gemini signs it."""
    if not raw.get("tool_calls") or _WITHOUT_SIGNATURES.match(model):
        return
    first = raw["tool_calls"][0]
    if not mapping(mapping(first.get("extra_content")).get("google")).get("thought_signature"):
        merge(first, {"extra_content": {"google": {"thought_signature": PLACEHOLDER}}})


def _says(value: object) -> bool:
    """Return whether a value holds anything: servers send empty members of every kind."""
    if isinstance(value, Mapping):
        try:
            return any(map(_says, value.values()))
        except RecursionError:
            return True
    return value is not None and value not in ("", [])


def _merge(members: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        present = members.get(name)
        if isinstance(present, dict) and isinstance(value, Mapping):
            _merge(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            for item in value:
                _append(present, item)
        else:
            members[name] = dict(value) if isinstance(value, Mapping) else value


def _append(items: list[Any], item: Any) -> None:
    """Add an item of a list, or a piece of its last item: both have the same `index` and type."""
    last = items[-1] if items else None
    if not (isinstance(last, dict) and isinstance(item, Mapping) and "index" in item) or any(
        last.get(name) != item.get(name) for name in ("index", "type")
    ):
        items.append(item)
        return
    for name, value in item.items():
        present = last.get(name)
        if name in _GROWING and isinstance(value, str) and isinstance(present, str):
            last[name] = present + value if len(present) <= MAX_BYTES else present
        elif value is not None:
            last[name] = value


_CALL_BYTES = 500
"""Memory of an unfinished call, in addition to its texts."""
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)


@dataclass(slots=True)
class PartialCall:
    """An unfinished call."""

    position: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    members: dict[str, Any] = field(default_factory=dict)
    """Members that are not part of the API."""
    _read: int = 0
    _depth: int = 0
    _quoted: bool = False
    _closed: bool = False

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    def is_complete(self) -> bool:
        """Return whether the arguments are a whole object or list: every string and bracket is closed.

        Reads each piece once, so that a stream of many fragments takes linear time.
        """
        unread = "".join(self.pieces[self._read :])
        cut = len(unread) - (len(unread) - len(unread.rstrip("\\"))) % 2  # an escape may be cut
        self.pieces[self._read :] = filter(None, (unread[:cut], unread[cut:]))
        self._read = len(self.pieces) - (cut < len(unread))
        unread = unread[:cut]
        for found in _STRUCTURE.finditer(unread):
            mark = found[0]
            if mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted and len(mark) == 1:
                self._depth += 1 if mark in "{[" else -1
                self._closed = self._depth == 0
        return self._closed and not self._quoted and self._read == len(self.pieces)


class CallAssembly:
    """The calls of one answer."""

    def __init__(self) -> None:
        self.size = 0
        """Approximate bytes in memory."""
        self._calls: list[PartialCall] = []
        self._at: dict[int, PartialCall] = {}
        """Index -> the last call at it."""
        self._by_id: dict[str, PartialCall] = {}

    def add(self, fragment: Mapping[str, Any]) -> ArgumentsPiece | None:
        """Add a fragment and return its piece of arguments."""
        function = mapping(fragment.get("function"))
        id_, name = text(fragment.get("id")), text(function.get("name"))
        index = position_of(fragment.get("index"))
        call = self._present(index, id_, name) or self._start(id_, name)
        if index is not None:
            self._at[index] = call
        call.id, call.name = call.id or id_, call.name or name
        self._by_id.setdefault(id_, call)
        if members := unknown_members_of_call(fragment):
            merge(call.members, members)
            self.size += kept_size(str(members))
        given = arguments(function.get("arguments"))
        if not given:
            return None
        call.pieces.append(given)
        self.size += kept_size(given)
        return ArgumentsPiece(call.position, call.name, given)

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls in the form of a completion."""
        runs: list[list[PartialCall]] = []
        for call in self._calls:
            first = runs[-1][0] if runs else None
            cut = first is not None and not first.is_complete() and not call.is_complete()
            if first is not None and cut and call.name in ("", first.name):
                runs[-1].append(call)
            else:
                runs.append([call])
        return [
            {
                **call.members,
                "id": call.id,
                "function": {
                    **mapping(call.members.get("function")),
                    "name": call.name,
                    "arguments": call.arguments,
                },
            }
            for run in runs
            for call in _joined(run)
        ]

    def _present(self, index: int | None, id_: str, name: str) -> PartialCall | None:
        """Return the call that a fragment continues; None if it starts another."""
        present = self._at.get(index) if index is not None else next(reversed(self._calls), None)
        if present is None:
            return None
        if id_ and id_ != present.id:
            known = self._by_id.get(id_)
            if known is not None and name in ("", known.name):
                return known
            if name and present.id:
                return None
        if not name or (id_ and (id_, name) == (present.id, present.name)):
            return present
        another = present.is_complete() or (not present.pieces and present.name not in ("", name))
        return None if another else present

    def _start(self, id_: str, name: str) -> PartialCall:
        call = PartialCall(len(self._calls))
        self._calls.append(call)
        self.size += _CALL_BYTES + kept_size(id_, name)
        return call


def _joined(run: list[PartialCall]) -> list[PartialCall]:
    """Return calls of one tool without complete arguments as one call, if that is complete."""
    whole = PartialCall(0, run[0].id, run[0].name, [call.arguments for call in run], run[0].members)
    return [whole] if len(run) > 1 and whole.is_complete() else run


@dataclass(frozen=True, slots=True)
class ChatServer:
    """What the servers of a vendor require."""

    call_id: re.Pattern[str] = re.compile(r"(?s).+")
    """Ids of calls that the vendor accepts. Servers without a rule get back every id that they gave: LiteLLM puts
    the signatures of Gemini into its ids."""
    reasoning_field: str = ""
    """Name under which reasoning is sent back; empty sends none."""
    reasoning_required: bool = False
    """Refuses a message with calls without that name, also if there was no reasoning."""
    returns_members: bool = True
    """Accepts the members back that it gave; the others refuse every name that is not in their documentation."""
    takes_citations: bool = False
    """Accepts its citations back inside the content; other servers get the text without them."""
    signed_calls: bool = False
    """Refuses calls without a signature (Gemini)."""


_THINKING: Final = ChatServer(reasoning_field="reasoning_content", reasoning_required=True)
_STRICT: Final = ChatServer(returns_members=False)
CHAT_SERVERS: Final[Mapping[str, ChatServer]] = {
    "openai": replace(_STRICT, call_id=re.compile(r"(?s).{1,40}")),
    "azure.ai.openai": replace(_STRICT, call_id=re.compile(r"(?s).{1,40}")),
    "mistral_ai": replace(_STRICT, call_id=re.compile(r"[a-zA-Z0-9]{9}"), takes_citations=True),
    "groq": _STRICT,
    "cerebras": _STRICT,
    "gcp.gemini": ChatServer(signed_calls=True),
    "gcp.vertex_ai": ChatServer(signed_calls=True),
    "deepseek": _THINKING,
    "moonshot_ai": _THINKING,
}
"""Name of a provider (`connection.provider_name`) -> its servers. A provider without a row has no rules."""
_OTHER: Final = ChatServer()


def server_of(address: str, provider: str | None = None) -> ChatServer:
    """Return the rules of a vendor by its name, else by its address; a vendor without a row has no rules."""
    return CHAT_SERVERS.get(provider_name(provider, "", address), _OTHER)


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """Options of a host for the form of requests; `OpenAI` documents them."""

    structured: Literal["native", "prompt"] = "native"
    stream_usage: bool = True
    reasoning_field: str | None = None
    server: ChatServer = field(default_factory=ChatServer)
    host: str = ""
    """Host and port of the server; without it, no members of answers are kept."""

    def schema(self, request: Request) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """Return the output schema for the native mode and for the prompt: one of them, or none."""
        schema = request.output_schema
        if schema is None:
            return None, None
        native = self.structured == "native" and structured_output.is_object(schema)
        return (schema, None) if native else (None, schema)


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
        for call in raw.get("tool_calls", ()):
            call["function"]["arguments"] = sendable_arguments(call["function"]["arguments"])
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
    listed = parts_of([{"type": "text", "text": part} if isinstance(part, str) else part for part in content])
    thoughts = [_thought(part) for part in listed if part.get("type") == "thinking"]
    parts = merged(
        {**part, "text": text(part.get("text"))} if part.get("type") == "text" else dict(part)
        for part in listed
        if part.get("type") != "thinking"
    )
    if all(part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts), "".join(thoughts) or None
    return [part for part in parts if part.get("text") != "" or part.get("type") != "text"], "".join(
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
        self.response_id: str | None = None
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
        self.response_id = text_or_none(chunk.get("id")) or self.response_id
        self._model = text_or_none(chunk.get("model")) or self._model
        self._usage = _usage(chunk) or self._usage
        for choice in objects(chunk.get("choices")):
            if not choice.get("index"):  # of several answers, the first
                delta = mapping(choice.get("delta"))
                if choice.get("delta") is None and not self.size:
                    # A whole completion; after its pieces it only repeats them.
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
        try:
            response = self._form.response({"model": self._model, "choices": choices})
        except LLMError as error:
            error.usage = self._usage
            raise
        return replace(response, usage=self._usage)

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
        body.update(_response_tools(request))
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
        reason = mapping(raw.get("incomplete_details")).get("reason")
        response = Response(
            [*kept, *([payload] if content else ())] if kept else content,
            tuple(
                tool_call(item.get("call_id"), item.get("name"), item.get("arguments"))
                for item in items
                if item.get("type") == "function_call"
            ),
            finish_reason(reason) or finish_reason(raw.get("status")),
            usage(raw.get("usage")),
            text_or_none(raw.get("model")),
            text_or_none("".join(text(part.get("refusal")) for part in parts)),
            text_or_none("\n\n".join(filter(None, map(_summary_text, thoughts)))),
        )
        return checked(response, RESPONSES)


def _text_of(item: Mapping[str, Any]) -> str:
    return "".join(text(part.get("text")) for part in objects(item.get("content")))


def _summary_text(item: Mapping[str, Any]) -> str:
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
        given = sendable_arguments(call.arguments)
        yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": given}


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


def _response_tools(request: Request) -> dict[str, Any]:
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
    def response_id(self) -> str | None:
        """The id of the answer, from its last event."""
        return text_or_none(mapping(self._final).get("id"))

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


class OpenAI(SdkModel):
    """A model behind OpenAI's API, or a compatible server.

    The dwell limit of the state bounds a whole answer. Each event loop has its own connection pool, closed with the
    loop; `aclose()`, or `async with`, closes the pool of the running loop earlier. `stream_usage` and `reasoning_field`
    apply to chat completions only.

    Args:
        model: Name of the model.
        base_url: Address including the version (`http://127.0.0.1:8080/v1`); None means OPENAI_BASE_URL, else
            OpenAI's.
        api_key: The key; None means OPENAI_API_KEY.
        api: `chat` (chat completions) or `responses`.
        client: The host's own client of the SDK (Azure, another authentication, a proxy), with its own address, key
            and timeout. It is used with retries off, and not closed here.
        timeout: Seconds without a byte from the server, including the wait for the first one. Connecting takes at
            most 5.
        total_timeout: Seconds that one request may take in all, whatever the server sends meanwhile. After that it is
            an LLMError (`timeout`), which is retried. None means nine tenths of the time that the state of the run has
            left.
        structured: `native`, or `prompt` to put an output schema into the prompt, for servers without
            `response_format: json_schema`. A schema that is not an object at the top always goes into the prompt.
        max_response_bytes: Maximum bytes, after decompression, of a body, of each event of a stream, and of the
            stored part of a stream; 0 is no limit. A larger answer is an LLMError (`malformed`) that is not retried.
        stream_usage: False omits `stream_options`, for servers that refuse it: streamed answers then report no
            tokens.
        reasoning_field: Name under which reasoning is sent back, for example `reasoning_content`; "" sends none.
            None means the name that the vendor requires, none for most.
        reads: Kinds of content parts that the model reads, of `text`, `image`, `file` and `audio`; None means all
            that the API carries. A request with another part is a ConfigError and is not sent.
        provider: Name of the vendor, for a proxy of yours: in metrics, spans and price lookups, and for the rules of
            its chat completions (`chat_server.CHAT_SERVERS`). If possible a value of `gen_ai.provider.name` in
            OpenTelemetry. None takes it from the address, else `openai` without rules.

    Raises:
        ConfigError: An argument cannot work.
        MissingExtra: The extra is not installed (an ImportError).

    Example:
        llm = OpenAI("gpt-4o-mini")                                         # the key from OPENAI_API_KEY
        llm = OpenAI("qwen3", base_url="http://127.0.0.1:8080/v1")          # a compatible server
        llm = OpenAI("gpt-5", api="responses", timeout=120)
        llm = OpenAI("my-deployment", client=AsyncAzureOpenAI(...))         # the host's own client
        agent = Agent(llm, tools=[search])
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        api: Literal["chat", "responses"] = "chat",
        client: AsyncOpenAI | None = None,
        timeout: float = 600.0,
        total_timeout: float | None = None,
        structured: Literal["native", "prompt"] = "native",
        max_response_bytes: int = DEFAULT_BYTES,
        stream_usage: bool = True,
        reasoning_field: str | None = None,
        reads: Collection[str] | None = None,
        provider: str | None = None,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtra("openai", "openai", "providers") from error
        check_model(model, structured, timeout, base_url)
        if api not in _FORMS:
            raise ConfigError(f"api is {api!r}; possible: {', '.join(_FORMS)}")
        if client is not None and not isinstance(client, openai.AsyncOpenAI):
            raise ConfigError(f"client is a {type(client).__name__}; possible: openai.AsyncOpenAI")
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigError("client brings its own address and key: give base_url and api_key to it")
        kinds = checked_kinds(reads, KINDS if api == "chat" else ("text", "image", "file"))
        self.api = api
        self.base_url = base_url
        self.timeout = timeout
        self.total_timeout = check_total_timeout(total_timeout)
        options = OpenAIOptions(structured, stream_usage, reasoning_field)
        form = _FORMS[api](options)
        if client is None:
            super().__init__(model, form, key_of("OpenAI", api_key, base_url), None, max_response_bytes)
        else:
            own = client.with_options(max_retries=0)
            super().__init__(model, form, SecretStr(client.api_key), own, max_response_bytes)
        self.reads = kinds
        self.provider = provider_name(provider, "openai", self.address)
        server = server_of(self.address, provider)  # the SDK may know the address, not we
        self._form = _FORMS[api](replace(options, server=server, host=urlsplit(self.address).netloc))
        self.call_id = _RESPONSES_ID if api == "responses" else server.call_id

    variables = "OPENAI"

    @property
    def reports_cost(self) -> bool:
        """Whether the server reports the cost of each answer: OpenRouter does."""
        host = urlsplit(self.address).hostname or ""
        return host == "openrouter.ai" or host.endswith(".openrouter.ai")

    @property
    def currency(self) -> str:
        """Currency of the costs that the server reports; "" if it reports none."""
        return "USD" if self.reports_cost else ""

    def __repr__(self) -> str:
        return f"OpenAI({self.model!r}, api={self.api!r})"

    def _new_client(self) -> AsyncOpenAI:
        import openai

        timeout = openai.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS))
        client = openai.AsyncOpenAI(
            api_key=self._key.get_secret_value(),
            base_url=self.base_url,
            timeout=timeout,
            max_retries=0,
            # Do not follow a redirect to an address that the host did not configure.
            http_client=openai.DefaultAsyncHttpxClient(
                timeout=timeout, follow_redirects=False, verify=shared_context(openai.DefaultAsyncHttpxClient)
            ),
        )
        self._resource(client)  # loads its types, which takes a second
        return client

    def _with_cache_hints(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        if urlsplit(self.address).hostname == "api.openai.com":
            body.setdefault("prompt_cache_key", cache_key(request.messages))
        return body

    def _parameters(self) -> Collection[str]:
        return _known_parameters(self.api)

    def _resource(self, client: AsyncOpenAI) -> Any:
        return client.responses if self.api == "responses" else client.chat.completions

    def _sendable(self, client: AsyncOpenAI, body: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that `create` requires by name, and the body, which overrides them unchanged.

        As arguments, messages would be compared with the SDK's types one by one: 0.3 ms each, for the whole history,
        in every turn. Text that UTF-8 cannot encode would stop the request before it is sent.
        """
        del client
        said = "input" if self.api == "responses" else "messages"
        return {"model": body["model"], said: [], "stream": body["stream"], "extra_body": encodable(body)}


_RESPONSES_ID = re.compile(r"(?s).{1,64}")
_FORMS: dict[str, Callable[[OpenAIOptions], ApiForm]] = {"chat": ChatForm, "responses": ResponsesForm}


@cache
def _known_parameters(api: str) -> frozenset[str]:
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    known = CompletionCreateParamsBase if api == "chat" else ResponseCreateParamsBase
    return known.__required_keys__ | known.__optional_keys__

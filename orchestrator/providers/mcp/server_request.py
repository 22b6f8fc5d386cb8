"""Requests of a server in the middle of a call: elicitations for a person, sampling for the model of the run.

Text and form come from outside: texts are cleaned and bounded, a form has flat fields only, and an address is shown
and never opened. What does not fit is refused, with a reason for the server.

Messages come from outside and go to the model unchanged, in a child run that has no tools and sees nothing of its
parent. Texts for a person are cleaned and bounded. The preferences for a model are hints, and the context of the run
is never added (`includeContext`); the specification allows a client to ignore both.

A request on a session of an earlier specification does not name the call that it belongs to. With one call in flight
there is no doubt. With several, a request waits until the others have ended or ask as well. If they belong to several
runs then, it is refused: no run is asked, or charged, for the call of another. After a server's first request,
different runs share no session.

A sampling request goes to the model of the run in the task of its call (`tool_call`), one after the other.

A call that asks a person stays in flight while its process lives and the person thinks. To answer the request after
the process has died is not possible: then the effect of the tool decides, and the repeated call answers the same
request with the recorded answer.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from orchestrator.errors import BudgetExceeded, ConfigError, RunStopped
from orchestrator.llm.message import ContentPart, FinishReason, Message, Response, encodable, text_part
from orchestrator.providers.mcp.answer import CallRefused, Reader
from orchestrator.providers.mcp.offer import clean
from orchestrator.tools.input_request import InputAnswer, InputRequest
from orchestrator.tools.sampling import SamplingRequest
from orchestrator.tools.spec import ToolContext

if TYPE_CHECKING:
    from mcp.client import ClientRequestContext
    from mcp.client.session import SamplingFnT
    from mcp_types import (
        CallToolResult,
        CreateMessageRequestParams,
        CreateMessageResult,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        SamplingMessage,
    )


_MESSAGE_CHARS: Final = 2_000
_TEXT_CHARS: Final = 200
_URL_CHARS: Final = 2_000
_NAME_CHARS: Final = 64
_FIELDS: Final = 50
_SCHEMA_BYTES: Final = 32 * 1024
_KINDS: Final = frozenset(("string", "number", "integer", "boolean", "array"))
_TEXTS: Final = frozenset(("title", "description"))
_MEMBERS: Final = frozenset(
    (
        *_TEXTS,
        *("type", "enum", "oneOf", "anyOf", "items", "default", "format"),
        *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"),
    )
)
"""Members of a field that the specification has."""


class BadElicitation(ValueError):
    """An elicitation that no person is asked; the message is a clause for the server."""


def input_request(server: str, params: ElicitRequestParams) -> InputRequest:
    """Return an elicitation as a request to a person, with the name of its server. Raises BadElicitation."""
    message = f"{server} asks: {clean(params.message, _MESSAGE_CHARS)}"
    if params.mode == "url":
        url = params.url
        try:
            parts = urlsplit(url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.username
        except ValueError:
            usable = False
        if not usable or len(url) > _URL_CHARS or clean(url, _URL_CHARS) != url or not url.isascii():
            raise BadElicitation(
                f"its address must start with https:// or http:// and a host, in ASCII, with at most {_URL_CHARS:,} "
                "characters and without a user"
            )
        return InputRequest(message, url=url)
    try:
        # The form with clean texts and the known members only. Raises BadElicitation.
        schema = params.requested_schema
        fields = schema.get("properties", {})
        required = schema.get("required", [])
        if schema.get("type") != "object" or not isinstance(fields, dict) or not isinstance(required, list):
            raise BadElicitation("its schema must describe an object with properties")
        if len(fields) > _FIELDS or len(json.dumps(schema)) > _SCHEMA_BYTES:
            raise BadElicitation(
                f"its form is too large: at most {_FIELDS} fields and {_SCHEMA_BYTES:,} bytes"
            )
        names = [name for name in required if name in fields]
        form = {
            "type": "object",
            "properties": {_name(name): _field(name, about) for name, about in fields.items()},
            **({"required": names} if names else {}),
        }
        return InputRequest(message, form)
    except ConfigError as error:
        raise BadElicitation(str(error)) from error


def elicit_result(answer: InputAnswer) -> ElicitResult:
    """Return the answer of a person in the form of the protocol."""
    from mcp_types import ElicitResult

    content: Any = dict(answer.content) if answer.action == "accept" else None
    return ElicitResult(action=answer.action, content=content)


def _name(name: str) -> str:
    if not name or clean(name, _NAME_CHARS) != name:
        raise BadElicitation(f"the name of a field must be visible text of at most {_NAME_CHARS} characters")
    return name


def _field(name: str, about: object) -> dict[str, Any]:
    if not isinstance(about, dict) or about.get("type", "string") not in _KINDS:
        raise BadElicitation(f"field {name!r} must be text, a number, a boolean, or a list of choices")
    items = about.get("items", {})
    if not isinstance(items, dict) or items.keys() & {"properties", "items"}:
        raise BadElicitation(f"field {name!r} must be a list of choices, without other fields in it")
    return {
        key: clean(value, _TEXT_CHARS) if key in _TEXTS and isinstance(value, str) else value
        for key, value in about.items()
        if key in _MEMBERS
    }


SamplingMode: TypeAlias = Literal["deny", "allow", "ask"]

REJECTED: Final = -1
"""Code of the specification for a request that the user rejected."""
TOO_MANY: Final = "the server samples more often than max_sampling allows in one call"
_MESSAGES: Final = 100
_TEXT_BYTES: Final = 1_000_000
"""Bytes of all texts of a request, some 250,000 tokens."""
_SHOWN: Final = 2_000
_DIGEST: Final = 32
"""Characters of the digest in a question."""
_TYPE_CHARS: Final = 100
_STOPS: Final = 16
_HOTTEST: Final = 2.0
_STOP_REASONS: Final = {FinishReason.STOP: "endTurn", FinishReason.LENGTH: "maxTokens"}


class SamplingRules(NamedTuple):
    """The host's rules for the sampling requests of a server."""

    mode: SamplingMode = "deny"
    most: int = 0
    """Maximum requests of one call; 0 is no limit."""
    max_bytes: int = 0
    """Maximum bytes of one part; 0 is no limit."""

    def question(self, server: str, request: SamplingRequest) -> InputRequest | None:
        """Return the question to a person about a request; None if nobody is asked."""
        return None if self.mode == "allow" else _question(server, request)


class BadSampling(ValueError):
    """A request that no model answers; the message is a clause for the server."""


def sampling_request(params: CreateMessageRequestParams, reader: Reader) -> SamplingRequest:
    """Return the request of a server as a request of its call. Raises BadSampling."""
    if params.tools or params.tool_choice is not None:
        raise BadSampling("this client offers no tools to the model of a sampling request; leave out `tools`")
    if params.task is not None:
        raise BadSampling("this client answers sampling requests at once; leave out `task`")
    if params.max_tokens < 1:
        raise BadSampling("maxTokens must be 1 or more")
    if params.temperature is not None and not 0 <= params.temperature <= _HOTTEST:
        raise BadSampling(f"temperature must be 0 to {_HOTTEST:g}")
    if not 1 <= len(params.messages) <= _MESSAGES:
        raise BadSampling(f"it must have 1 to {_MESSAGES} messages")
    stop = tuple(params.stop_sequences or ())
    if len(stop) > _STOPS:
        raise BadSampling(f"it must have at most {_STOPS} stop sequences")
    messages, said = [_message(message, reader) for message in params.messages], params.system_prompt or ""
    texts = [said, *stop, *(message.text for message in messages)]
    if sum(len(text.encode(errors="replace")) for text in texts) > _TEXT_BYTES:
        raise BadSampling(f"its texts must have at most {_TEXT_BYTES:,} bytes")
    return SamplingRequest(
        messages, encodable(said) or None, params.max_tokens, params.temperature, tuple(map(encodable, stop))
    )


def sampling_result(response: Response) -> CreateMessageResult:
    """Return the answer of the model in the form of the protocol."""
    from mcp_types import CreateMessageResult, TextContent

    return CreateMessageResult(
        role="assistant",
        content=TextContent(type="text", text=response.message().text or response.refusal or ""),
        model=response.model or "unknown",
        stop_reason=_stop_reason(response),
    )


def _stop_reason(response: Response) -> str | None:
    if response.finish_reason == "stop_sequence":
        return "stopSequence"
    return None if response.finish is None else _STOP_REASONS.get(response.finish)


async def sampled(context: ToolContext, request: SamplingRequest) -> CreateMessageResult | ErrorData:
    """Ask the model of the run of a call. The server reads no details of a failure, because they name the host."""
    from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ErrorData

    if context.sample is None:
        return ErrorData(code=INVALID_REQUEST, message="the call has no model that could answer")
    try:
        return sampling_result(await context.sample(request))
    except BudgetExceeded:
        return ErrorData(
            code=INTERNAL_ERROR, message="the budget of the run allows no further request to the model"
        )
    except RunStopped:
        return ErrorData(code=INTERNAL_ERROR, message="the model gave no answer")


class CallSampling:
    """The sampling requests of a call to a server of 2026-07-28, which returns them as results.

    Args:
        context: The context of the present attempt.
        rules: The rules of the host.
        server: Name of the server.
        count: Requests of the call that the model answered in earlier attempts.
    """

    def __init__(self, context: ToolContext, rules: SamplingRules, server: str, count: int) -> None:
        self.mode = rules.mode
        self.count = count
        """Requests of the call that the model answered so far."""
        self._context = context
        self._rules = rules
        self._server = server

    def question(self, params: CreateMessageRequestParams) -> InputRequest:
        """Return the question to a person about a request. Raises CallRefused."""
        return _question(self._server, self._request(params))

    async def response(self, params: CreateMessageRequestParams) -> dict[str, Any]:
        """Return the answer of the model as JSON. Raises CallRefused."""
        from mcp_types import ErrorData

        if self._rules.most and self.count >= self._rules.most:
            raise CallRefused(TOO_MANY)
        self.count += 1
        reply = await sampled(self._context, replace(self._request(params), key=str(self.count)))
        if isinstance(reply, ErrorData):
            raise CallRefused(reply.message)
        return json_data(reply)

    def _request(self, params: CreateMessageRequestParams) -> SamplingRequest:
        try:
            return sampling_request(params, Reader(self._context.reads, self._rules.max_bytes))
        except BadSampling as error:
            raise CallRefused(f"the server samples in a way that is refused: {error}") from error


def rejected() -> ErrorData:
    """Return the error for a request that a person did not allow."""
    from mcp_types import ErrorData

    return ErrorData(code=REJECTED, message="User rejected sampling request")


def json_data(message: CreateMessageRequestParams | CreateMessageResult) -> dict[str, Any]:
    """Return the parameters of a request, or its result, as JSON data."""
    return message.model_dump(mode="json", by_alias=True, exclude_none=True)


def _question(server: str, request: SamplingRequest) -> InputRequest:
    """Return the question whether the model may answer. The digest makes questions about other requests differ."""
    system = [("system", request.instructions)] if request.instructions else []
    said = [*system, *((message.role, _text(message)) for message in request.messages)]
    shown = clean("; ".join(f"{role}: {_quoted(text)}" for role, text in said), _SHOWN)
    size = sum(len(text) for _, text in said)
    name = request.digest[:_DIGEST]
    about = f"{size:,} characters, at most {request.max_tokens:,} tokens of answer, request {name}"
    return InputRequest(f"{server} asks to use the model of this run ({about}): {shown}")


def _quoted(text: str) -> str:
    """Return a text in quotes, so that it cannot look like another message."""
    return json.dumps(clean(text, _SHOWN), ensure_ascii=False)


def _text(message: Message) -> str:
    """Return the text of a message, and the kinds of its other parts."""
    parts = message.content if isinstance(message.content, list) else []
    return " ".join(
        [message.text, *(f"[{part['type']}]" for part in parts if part["type"] != "text")]
    ).strip()


def _message(message: SamplingMessage, reader: Reader) -> Message:
    parts = [_part(block, reader) for block in message.content_as_list]
    if all(part["type"] == "text" for part in parts):
        return Message(message.role, "\n".join(str(part["text"]) for part in parts))
    return Message(message.role, [dict(part) for part in parts])


def _part(block: Any, reader: Reader) -> ContentPart:
    """Return a block of a message as a part. Raises BadSampling."""
    if block.type == "text":
        return text_part(encodable(block.text))
    if block.type not in ("image", "audio"):
        raise BadSampling(
            "its messages must have text, images and audio only: this client offers no tools there"
        )
    part = reader.part(block.mime_type, block.data, "")
    if part is None:
        media = clean(block.mime_type, _TYPE_CHARS)
        raise BadSampling(
            f"the model of this client cannot read its {block.type} ({media}), or it is too large"
        )
    return part


# ---- calls in flight ----

NO_CALL: Final = "no call of this client is in flight, so nobody can answer"
SEVERAL_RUNS: Final = (
    "calls of several runs are in flight, so it is unknown who must answer; call the tool again"
)

_MOST_WAITING: Final = 100

T = TypeVar("T")


class SeveralRuns(Exception):
    """A request could belong to calls of several runs."""


class Elicitation:
    """One request of a server that waits for a person."""

    is_allowed = False
    """Whether the model may answer it."""

    def __init__(self, question: InputRequest) -> None:
        self.question = question
        self.answer: asyncio.Future[InputAnswer] = asyncio.get_running_loop().create_future()

    def resolve(self, answer: InputAnswer) -> None:
        """Answer the server, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Sampling:
    """One request of a server that waits for the model, or first for a person who allows it."""

    def __init__(self, request: SamplingRequest, question: InputRequest | None) -> None:
        self.request = request
        self.question = question
        """The question to the person; None if nobody is asked."""
        self.is_allowed = question is None
        self.answer: asyncio.Future[CreateMessageResult | ErrorData] = (
            asyncio.get_running_loop().create_future()
        )

    def resolve(self, answer: InputAnswer) -> None:
        """Allow or reject the request, as a person decided."""
        self.is_allowed = answer.action == "accept"
        if not self.is_allowed:
            self.reply(rejected())

    def reply(self, reply: CreateMessageResult | ErrorData) -> None:
        """Answer the server, if it still waits."""
        self.is_allowed = False
        if not self.answer.done():
            self.answer.set_result(reply)


ServerRequest: TypeAlias = Elicitation | Sampling


class LiveCall:
    """One call in flight. `asked` is set while a request of it waits for a person or for the model.

    `limit` bounds its questions, `sampling` its requests to the model; 0 is no limit.
    """

    def __init__(self, context: ToolContext, limit: int, sampling: int = 0) -> None:
        self.context: ToolContext | None = context
        """The context of the present attempt; None while the run waits for a person."""
        self.run_id = context.run_id
        self.reads = context.reads
        self.task: asyncio.Task[CallToolResult] | None = None
        self.open: ServerRequest | None = None
        self.asked = asyncio.Event()
        self.freed: Callable[[], None] = lambda: None
        """Called when the call can take a further request."""
        self._samples_left = sampling or None
        self._samples = Counter[str]()
        """Digest -> equal requests to the model so far."""
        self._left = limit - len(context.input.earlier) if limit else None
        self._recorded: defaultdict[str, deque[InputAnswer]] = defaultdict(deque)
        self._declined: set[str] = set()
        for digest, answer in context.input.earlier:
            self._recorded[digest].append(answer)
            if answer.action == "decline":
                self._declined.add(digest)

    def take(self, request: ServerRequest) -> None:
        """Answer a request from the record, or open it for a person or the model. Refuse it beyond a limit."""
        if isinstance(request, Sampling) and not self._may_sample(request):
            return
        if request.question is None:
            self._open(request)
        elif recorded := self._recorded[request.question.digest]:
            self._settle(request, recorded.popleft())
        elif request.question.digest in self._declined:
            request.resolve(InputAnswer("decline"))
        elif self._left == 0:
            request.resolve(InputAnswer("cancel"))
        else:
            self._left = None if self._left is None else self._left - 1
            self._open(request)

    def resolve(self, answer: InputAnswer) -> None:
        """Answer the open request with the answer of a person; a declined one is declined again without a question."""
        request = self.close()
        if request is None:
            return
        if request.question is not None and answer.action == "decline":
            self._declined.add(request.question.digest)
        self._settle(request, answer)
        if self.open is None:
            self.freed()

    def reply(self, request: Sampling, reply: CreateMessageResult | ErrorData) -> None:
        """Answer a request to the model."""
        request.reply(reply)
        self._free(request)

    def drop(self, request: ServerRequest) -> None:
        """Forget a request to the model that the server has withdrawn."""
        if request.is_allowed:
            self._free(request)

    def close(self) -> ServerRequest | None:
        """Take the open request from the call, and return it."""
        self.asked.clear()
        request, self.open = self.open, None
        return request

    def _free(self, request: ServerRequest) -> None:
        if self.open is request:
            self.close()
            self.freed()

    def _open(self, request: ServerRequest) -> None:
        self.open = request
        self.asked.set()

    def _settle(self, request: ServerRequest, answer: InputAnswer) -> None:
        """Pass the answer of a person on; a request that was allowed waits for the model next."""
        request.resolve(answer)
        if request.is_allowed:
            self._open(request)

    def _may_sample(self, sampling: Sampling) -> bool:
        if self._samples_left == 0:
            from mcp_types import INVALID_REQUEST, ErrorData

            too_many = ErrorData(code=INVALID_REQUEST, message=TOO_MANY)
            sampling.reply(too_many)
            return False
        self._samples_left = None if self._samples_left is None else self._samples_left - 1
        self._samples[sampling.request.digest] += 1
        if (number := self._samples[sampling.request.digest]) > 1:
            sampling.request = replace(sampling.request, key=str(number))
        return True


class LiveCalls:
    """The calls in flight on one session."""

    def __init__(
        self,
        server: Callable[[], str],
        first: Callable[[], None],
        rules: SamplingRules = SamplingRules(),  # noqa: B008 - a tuple
    ) -> None:
        self.rules = rules
        self._server = server
        self._first = first
        self._calls: list[LiveCall] = []
        self._waiting: list[ServerRequest] = []

    @property
    def sampler(self) -> SamplingFnT | None:
        """The callback for sampling requests; None if the host does not allow them, so that they are not offered."""
        return None if self.rules.mode == "deny" else self.sample

    @property
    def runs(self) -> set[str]:
        """The runs that have a call in flight."""
        return {call.run_id for call in self._calls}

    def add(self, call: LiveCall) -> None:
        """Add a call that is sent now."""
        self._calls.append(call)
        call.freed = self.assign

    def remove(self, call: LiveCall) -> None:
        """Remove a call that has ended, and assign the requests that waited for that."""
        self._calls.remove(call)
        if (request := call.close()) is not None:
            request.resolve(InputAnswer("cancel"))
        self.assign()

    async def elicit(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Answer an elicitation of the server, when a person has answered it."""
        del context  # it names no call
        from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ErrorData

        self._first()
        if not self._calls:
            return ErrorData(code=INVALID_REQUEST, message=NO_CALL)
        try:
            elicitation = Elicitation(input_request(self._server(), params))
        except BadElicitation as error:
            return ErrorData(code=INVALID_PARAMS, message=f"the elicitation is refused: {error}")
        answer = await self._answered(elicitation, elicitation.answer)
        return elicit_result(answer) if isinstance(answer, InputAnswer) else answer

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Answer a sampling request of the server, when the model has answered it."""
        del context  # it names no call
        from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ErrorData

        self._first()
        if not self._calls:
            return ErrorData(code=INVALID_REQUEST, message=NO_CALL)
        try:
            request = sampling_request(params, Reader(self._calls[0].reads, self.rules.max_bytes))
        except BadSampling as error:
            return ErrorData(code=INVALID_PARAMS, message=f"the sampling request is refused: {error}")
        sampling = Sampling(request, self.rules.question(self._server(), request))
        return await self._answered(sampling, sampling.answer)

    async def _answered(self, request: ServerRequest, answer: asyncio.Future[T]) -> T | ErrorData:
        """Give a request to its call, and return the answer."""
        from mcp_types import INVALID_REQUEST, ErrorData

        if len(self._waiting) >= _MOST_WAITING:
            return ErrorData(code=INVALID_REQUEST, message="too many requests of this server wait already")
        self._waiting.append(request)
        self.assign()
        try:
            return await answer
        except SeveralRuns:
            return ErrorData(code=INVALID_REQUEST, message=SEVERAL_RUNS)
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
            for call in self._calls:
                call.drop(request)

    def assign(self) -> None:
        """Give the waiting requests to the calls, once there is no doubt about their run."""
        free = [call for call in self._calls if call.open is None]
        several = len(self.runs) > 1
        ready = [*self._waiting]
        if len(ready) < len(free):
            # The model answers for the run, whichever of its calls asks; a person answers a call.
            ready = [] if several else [one for one in ready if one.is_allowed]
        elif several:
            for one in ready:
                if not one.answer.done():
                    one.answer.set_exception(SeveralRuns())
            self._waiting.clear()
            return
        for call in free:
            while ready and call.open is None:
                self._waiting.remove(one := ready.pop(0))
                call.take(one)

"""Requests of a server in the middle of a call: elicitations for a person, sampling for the model of the run.

Text and form come from outside: texts are cleaned and bounded, a form has flat fields only, and an address is shown
and never opened. What does not fit is refused, with a reason for the server.

Messages come from outside and go to the model unchanged, in a child run that has no tools and sees nothing of its
parent. Texts for a person are cleaned and bounded. The preferences for a model are hints, and the context of the run
is never added (`includeContext`); the specification allows a client to ignore both.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from orchestrator.errors import BudgetExceeded, ConfigError, RunStopped
from orchestrator.llm.message import ContentPart, FinishReason, Message, Response, encodable, text_part
from orchestrator.providers.mcp.answer import CallRefused, Reader
from orchestrator.providers.mcp.offer import clean
from orchestrator.tools.input_request import InputAnswer, InputRequest
from orchestrator.tools.sampling import SamplingRequest
from orchestrator.tools.spec import ToolContext

if TYPE_CHECKING:
    from mcp_types import (
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

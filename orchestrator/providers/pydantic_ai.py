"""Models of pydantic-ai: every model class and provider of that library.

    pip install "fsm-orchestrator[pydantic-ai]" "pydantic-ai-slim[google]"

The library converts requests and speaks to the provider. Retries, budgets, the journal and the tools are ours: its
retries are off, its agent is not used. `pydantic_ai_request` converts messages, `fault` classifies failures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import SecretStr

from orchestrator.errors import ConfigError, LLMError, MissingExtra
from orchestrator.llm.content_part import KINDS, PartKind
from orchestrator.llm.message import ArgumentsPiece, ReasoningPiece, Request, Response, encodable
from orchestrator.providers import fault
from orchestrator.providers.bedrock_client import calls_end
from orchestrator.providers.connection import check_total_timeout
from orchestrator.providers.loop_client import LoopClients
from orchestrator.providers.openai_schema import is_object, named
from orchestrator.providers.parameter import check_names
from orchestrator.providers.pydantic_ai_library import (
    check_arguments,
    close,
    close_own,
    default_settings,
    doubles,
    inferred,
    is_cut,
    profile_of,
    setting_names,
)
from orchestrator.providers.readable_part import checked_kinds
from orchestrator.providers.reading import arguments, mapping
from orchestrator.providers.schema_prompt import instructed
from orchestrator.providers.vendor_model import VendorModel

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse

_READS: Final[Mapping[str, PartKind]] = {
    "supports_image_input": "image",
    "supports_document_input": "file",
    "supports_audio_file_input": "audio",
}
_CONTINUATIONS: Final = 10
_DECLARING: Final = frozenset(("anthropic", "bedrock"))
"""Providers that refuse calls in the history of a request without tools."""


class _Declaration(NamedTuple):
    """A tool that was called and is no longer offered."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = MappingProxyType({})


class PydanticAIModel(VendorModel):
    """A model of pydantic-ai.

    A model that is given by name has one client for each event loop, closed with the loop; `aclose()`, or
    `async with`, closes the client of the running loop earlier. A model object of that library is used on one event
    loop at a time. Parameters of a request are the library's model settings, for example `temperature` and
    `google_thinking_config`. `max_retries` is 0 and `cache` is True unless the parameters have them: providers that
    take prompt-caching hints receive them.

    An answer of 404 names the address of the provider where its library does not report the request (Bedrock, Cohere).
    A client of boto3 in a model object retries by itself: configure it with `retries={"total_max_attempts": 1}`.

    Args:
        model: `PROVIDER:NAME` as the library writes it (`google:gemini-3-pro`), or a model object of it.
        base_url: Address of the provider; None means the library's default. Only for a model given by name.
        api_key: The key; None means the variable of the provider, for example GOOGLE_API_KEY. Only for a model
            given by name.
        total_timeout: Seconds that one request may take in all, whatever the server sends meanwhile. After that it is
            an LLMError (`timeout`), which is retried. None means nine tenths of the time that the state of the run has
            left.
        structured: `native`, or `prompt` to put an output schema into the prompt. A schema that is not an object at
            the top, and a model without a mode for schemas, always use the prompt.
        reads: Kinds of content parts that the model reads, of `text`, `image`, `file` and `audio`; None means those
            of the model's profile. A request with another part is a ConfigError and is not sent.

    Raises:
        ConfigError: An argument cannot work, or the library for the provider is not installed.
        MissingExtra: The extra is not installed (an ImportError).

    Example:
        llm = PydanticAIModel("google:gemini-3-pro")                  # the key from GOOGLE_API_KEY
        llm = PydanticAIModel(GroqModel("qwen3", settings={...}))     # a model object of pydantic-ai
        agent = Agent(llm, tools=[search])
    """

    def __init__(
        self,
        model: str | Model,
        *,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        total_timeout: float | None = None,
        structured: Literal["native", "prompt"] = "native",
        reads: Collection[str] | None = None,
    ) -> None:
        try:
            import pydantic_ai  # noqa: F401
        except ImportError as error:
            raise MissingExtra("pydantic-ai-slim", "pydantic-ai", "providers") from error
        check_arguments(model, structured, base_url, api_key)
        key = api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key
        self._key = SecretStr(key or "")
        self._structured = structured
        self.total_timeout = check_total_timeout(total_timeout)
        if isinstance(model, str):
            first = inferred(model, base_url, key)
            self._clients = LoopClients(lambda: inferred(model, base_url, key), close_own, first)
        else:
            first = model
            self._clients = LoopClients(lambda: model, close, first)
        self._profile: Mapping[str, Any] = profile_of(first)
        readable = {kind for flag, kind in _READS.items() if self._profile.get(flag, True)}
        self.reads = checked_kinds(reads, tuple(kind for kind in KINDS if kind == "text" or kind in readable))
        self.model = first.model_name
        self.provider = first.system
        self.context_window: int | None = self._profile.get("context_window")
        self.double = isinstance(first, doubles())
        self._settings = setting_names(first)
        self._defaults = default_settings(first)

    def __repr__(self) -> str:
        return f"PydanticAIModel({self.provider}:{self.model})"

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Raise ConfigError for a parameter that is no setting of the model."""
        check_names(params, self._settings, f"the pydantic-ai model {self.model!r}")

    # ---- one answer ----

    async def _answered(self, request: Request) -> Response:
        from orchestrator.providers.pydantic_ai_request import conversation, response_of

        llm = await self._clients.get()
        if self.provider in _DECLARING and not request.tools:
            called = {call.name for message in request.messages for call in message.tool_calls}
            declared = tuple(_Declaration(name) for name in sorted(called))
            request = replace(request, tools=declared, tool_choice="none")
        schema = request.output_schema
        native = schema is not None and self._is_native(schema)
        sent = request.messages if schema is None or native else instructed(request.messages, schema)
        parameters = _parameters(request, native=native)
        settings = {**self._defaults, **encodable(dict(request.params)), **_choice(request)}
        given = {"model_settings": settings, "model_request_parameters": parameters, "instrument": False}
        listener = _Listener(request)
        try:
            messages = llm.prepare_messages(conversation(sent), parameters)
            with calls_end():
                answer = await _requested(llm, messages, given, listener)
        except LLMError:
            raise
        except Exception as error:
            raise _converted(error, listener.partial, llm.base_url or "") from error
        return response_of(answer)

    def _is_native(self, schema: Mapping[str, Any]) -> bool:
        able = self._structured == "native" and self._profile.get("supports_json_schema_output", False)
        return bool(able and is_object(schema))


async def _requested(
    llm: Model,
    messages: list[ModelMessage],
    given: dict[str, Any],
    listener: _Listener,
    continuations: int = _CONTINUATIONS,
) -> ModelResponse:
    """Return the answer; if the provider pauses it, ask again until it ends."""
    from pydantic_ai.direct import model_request

    answer = await _streamed(llm, messages, given, listener) if listener.listens else None
    streamed = answer is not None
    if answer is None:
        answer = await model_request(llm, messages, **given)
    if is_cut(llm, answer, streamed=streamed):
        raise fault.of_cut(listener.partial)
    if not streamed:
        listener.take_whole(answer)
    if answer.state != "suspended" or continuations == 0:
        return answer
    return _joined(answer, await _requested(llm, [*messages, answer], given, listener, continuations - 1))


async def _streamed(
    llm: Model, messages: list[ModelMessage], given: dict[str, Any], listener: _Listener
) -> ModelResponse | None:
    """Return a streamed answer; None if the model class cannot stream."""
    from pydantic_ai.direct import model_request_stream

    async with AsyncExitStack() as stack:
        try:
            stream = await stack.enter_async_context(model_request_stream(llm, messages, **given))
        except NotImplementedError:
            return None
        await listener.follow(stream)
        return stream.get()


def _joined(first: ModelResponse, then: ModelResponse) -> ModelResponse:
    """Return one answer from a paused one and its continuation."""
    if first.provider_response_id is not None and first.provider_response_id == then.provider_response_id:
        return then  # the same answer, complete
    known = first.usage.has_values() and then.usage.has_values()
    used = first.usage + then.usage if known else type(then.usage)()
    return replace(then, parts=[*first.parts, *then.parts], usage=used)


def _parameters(request: Request, *, native: bool) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=offer.name,
            description=offer.description,
            parameters_json_schema={"type": "object", "properties": {}, **offer.parameters},
        )
        for offer in request.tools
    ]
    if not native:
        return ModelRequestParameters(function_tools=tools)
    form = named(mapping(request.output_schema))
    output = OutputObjectDefinition(json_schema=form["schema"], name=form["name"])
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=output)


def _choice(request: Request) -> dict[str, Any]:
    """Return the choice of tools; nothing for auto, the default, so that the parameters decide."""
    if request.tool_choice == "auto" or not request.tools:
        return {}
    single = request.tool_choice in ("none", "required")
    return {"tool_choice": request.tool_choice if single else [request.tool_choice]}


def _converted(error: Exception, partial: str, address: str) -> Exception:
    """Return the error of a failed call as ours; an error of a listener stays as it is.

    `address` is that of the provider, for the libraries that do not report the address of a request.
    """
    from pydantic_ai.exceptions import UserError

    if isinstance(error, UserError):
        return ConfigError(f"pydantic-ai refused the request: {error}")
    return fault.of_exception(error, partial=partial, address=address) or error


# ---- streams ----


class _Listener:
    """Passes the pieces of a streamed answer to the listeners of its request."""

    def __init__(self, request: Request) -> None:
        self.listens = request.on_delta is not None
        self._on_delta = request.on_delta
        self._on_piece = request.on_piece
        self._said: list[str] = []
        self._calls: dict[int, tuple[int, str]] = {}
        """Index of a part -> position and name of the call that it is."""

    @property
    def partial(self) -> str:
        """The text so far."""
        return "".join(self._said)

    async def follow(self, stream: StreamedResponse) -> None:
        """Read a stream to its end."""
        async for event in stream:
            if event.event_kind == "part_start":
                self._started(event.index, event.part)
            elif event.event_kind == "part_delta":
                self._grown(event.index, event.delta)

    def take_whole(self, answer: ModelResponse) -> None:
        """Deliver an answer that was not streamed."""
        for index, part in enumerate(answer.parts):
            self._started(index, part)

    def _started(self, index: int, part: Any) -> None:
        if part.part_kind == "text":
            self._text(part.content)
        elif part.part_kind == "thinking":
            self._thought(part.content)
        elif part.part_kind == "tool-call":
            self._calls[index] = len(self._calls), part.tool_name
            self._given(index, part.args)

    def _grown(self, index: int, delta: Any) -> None:
        if delta.part_delta_kind == "text":
            self._text(delta.content_delta)
        elif delta.part_delta_kind == "thinking":
            self._thought(delta.content_delta)
        elif delta.part_delta_kind == "tool_call":
            self._given(index, delta.args_delta)

    def _text(self, piece: str) -> None:
        if piece and self._on_delta is not None:
            self._said.append(piece)
            self._on_delta(piece)

    def _thought(self, piece: str | None) -> None:
        if piece and self._on_piece is not None:
            self._on_piece(ReasoningPiece(piece))

    def _given(self, index: int, piece: str | dict[str, Any] | None) -> None:
        if piece and self._on_piece is not None:
            self._on_piece(ArgumentsPiece(*self._calls.get(index, (len(self._calls), "")), arguments(piece)))

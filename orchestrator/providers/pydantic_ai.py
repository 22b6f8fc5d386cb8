"""Models of pydantic-ai: every model class and provider of that library.

boto3 blocks the thread of a call until the server answers or its read timeout of 5 minutes passes. pydantic-ai leaves
such a thread behind when the call is cancelled, and an interpreter waits for the threads of its pool before it exits.
So each call runs in a daemon thread here, and the thread of the pool waits for it only as long as the caller does. To
shut down the socket was rejected: no public name of botocore leads to it.

    pip install "fsm-orchestrator[pydantic-ai]" "pydantic-ai-slim[google]"

The library converts requests and speaks to the provider. Retries, budgets, the journal and the tools are ours: its
retries are off, its agent is not used. `pydantic_ai_request` converts messages, `fault` classifies failures.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from pydantic import SecretStr

from orchestrator.errors import ConfigError, LLMError, MissingExtra
from orchestrator.llm.message import (
    KINDS,
    ArgumentsPiece,
    PartKind,
    ReasoningPiece,
    Request,
    Response,
    encodable,
)
from orchestrator.providers import fault
from orchestrator.providers.connection import (
    LoopClients,
    check_address,
    check_total_timeout,
    server_of_address,
)
from orchestrator.providers.reading import arguments, mapping
from orchestrator.providers.structured_output import instructed, is_object, named
from orchestrator.providers.vendor_model import VendorModel, check_names, checked_kinds, note_response_id

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse

_SERVICE: Final = "bedrock-runtime"
_OPERATIONS: Final = ("converse", "converse_stream")


class _Calls:
    """The calls of one caller. One that starts when the caller has left ends at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Future[Any]] = []
        self._ended = False

    def add(self, answer: Future[Any]) -> None:
        with self._lock:
            self._waiting.append(answer)
            if self._ended:
                answer.cancel()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for answer in self._waiting:
                answer.cancel()


_CALLS: ContextVar[_Calls | None] = ContextVar("orchestrator_bedrock_calls", default=None)


def prepare(client: Any) -> None:
    """Turn off the retries of a client, and let its calls end with the block of `calls_end`."""
    client.meta.events.unregister(f"needs-retry.{_SERVICE}", unique_id=f"retry-config-{_SERVICE}")
    for name in _OPERATIONS:
        setattr(client, name, _in_daemon(getattr(client, name)))


@contextmanager
def calls_end() -> Iterator[None]:
    """Free the threads that wait for calls of this block when the block is left."""
    calls = _Calls()
    token = _CALLS.set(calls)
    try:
        yield
    finally:
        _CALLS.reset(token)
        calls.end()


def _in_daemon(operation: Callable[..., Any]) -> Callable[..., Any]:
    def call(**params: Any) -> Any:
        answer: Future[Any] = Future()
        if (calls := _CALLS.get()) is not None:
            calls.add(answer)
        context = contextvars.copy_context()
        work = threading.Thread(
            target=context.run, args=(_settle, answer, operation, params), name="bedrock call", daemon=True
        )
        if not answer.cancelled():
            work.start()
        return answer.result()

    return call


def _settle(answer: Future[Any], operation: Callable[..., Any], params: dict[str, Any]) -> None:
    try:
        result = operation(**params)
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
        with suppress(InvalidStateError):
            answer.set_exception(error)
        return
    try:
        answer.set_result(result)
    except InvalidStateError:  # the caller left
        if (stream := result.get("stream")) is not None:
            stream.close()


_ADVERT: Final = " To try Pydantic AI without an API key"
"""Start of what the library adds to the name of the missing variable; it is about an agent of its own."""


def check_arguments(model: object, structured: str, base_url: str | None, api_key: object) -> None:
    """Raise ConfigError for arguments that no model can have."""
    from pydantic_ai.models import Model

    if structured not in ("native", "prompt"):
        raise ConfigError(f"structured is {structured!r}; possible: native, prompt")
    if not isinstance(model, str | Model):
        raise ConfigError(
            f"model is a {type(model).__name__}; possible: PROVIDER:NAME, or a model of pydantic-ai"
        )
    if not isinstance(model, str) and (base_url is not None or api_key is not None):
        raise ConfigError(
            "a model object has its own address and key: give base_url and api_key to its provider"
        )
    if base_url is not None:
        check_address(base_url)


def inferred(name: str, base_url: str | None, key: str | None) -> Model:
    """Return the model of a name. Raises ConfigError."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider_class

    given = {
        **({} if base_url is None else {"base_url": base_url}),
        **({} if key is None else {"api_key": key}),
    }
    try:
        if not given:
            return _prepared(infer_model(name))
        return _prepared(infer_model(name, lambda provider: infer_provider_class(provider)(**given)))
    except (UserError, ImportError, ValueError) as error:
        reason = str(error).partition(_ADVERT)[0]
        raise ConfigError(f"model {name!r} of pydantic-ai cannot be used: {reason}") from error
    except TypeError as error:  # from the provider's class
        shown = " and ".join(given)
        raise ConfigError(f"the provider of {name!r} takes no {shown}; set its variables: {error}") from error


async def close(model: Model) -> None:
    """Close the clients that the library opened for a model object of the host."""
    if model.provider is not None:
        async with model:  # the library closes the client of a model that is left
            pass


async def close_own(model: Model) -> None:
    """Close every client of a model that was built here."""
    await close(model)
    if _is_bedrock(model):
        await asyncio.to_thread(model.client.close)  # type: ignore[attr-defined]


def profile_of(model: Model) -> Mapping[str, Any]:
    """Return what the library knows about a model; nothing for one that only forwards to others."""
    try:
        return cast("Mapping[str, Any]", model.profile)
    except NotImplementedError:
        return {}


def setting_names(model: Model) -> frozenset[str]:
    """Return the settings of a model: those in the `…ModelSettings` of its modules, and of the models that it wraps."""
    found: set[str] = set()
    for module in {sys.modules[kind.__module__] for kind in type(model).__mro__}:
        for name in dir(module):
            settings = getattr(module, name) if name.endswith("ModelSettings") else None
            found |= getattr(settings, "__required_keys__", frozenset())
            found |= getattr(settings, "__optional_keys__", frozenset())
    inner = [*getattr(model, "models", ()), *filter(None, [getattr(model, "wrapped", None)])]
    return frozenset(found).union(*map(setting_names, inner)) - model.unsupported_settings


def default_settings(model: Model) -> dict[str, Any]:
    """Return the settings of every request: our retries are the only ones, and prompts are cached."""
    own = {"cache": True, "max_retries": 0}
    return {name: value for name, value in own.items() if name not in model.unsupported_settings}


def doubles() -> tuple[type, ...]:
    """Return the model classes that call no provider."""
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.test import TestModel

    return TestModel, FunctionModel


def is_cut(model: Model, answer: ModelResponse, *, streamed: bool) -> bool:
    """Return whether an answer stopped before its end: a provider ends one with a finish reason.

    For an OpenAI-compatible server that never gives one the library assumes `stop`. In a stream that counts as the end
    if the server reported the usage. An answer that we did not stream can be cut too, because the library streams
    long ones of Anthropic. Models without a provider, for example doubles, need give neither.
    """
    if answer.state != "complete":
        return answer.state == "incomplete"
    reported = (answer.provider_details or {}).get("finish_reason")
    assumed = answer.finish_reason and (answer.usage.has_values() or not streamed)
    return model.provider is not None and not (reported or assumed)


def _prepared(model: Model) -> Model:
    """Turn off the retries of a client whose library has no setting for them."""
    if _is_bedrock(model):
        prepare(model.client)  # type: ignore[attr-defined]
    return model


def _is_bedrock(model: Model) -> bool:
    module = sys.modules.get("pydantic_ai.models.bedrock")
    return module is not None and isinstance(model, module.BedrockConverseModel)


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
        if request.route is not None:
            request.route.server = server_of_address(llm.base_url or "")
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
        note_response_id(request, answer.provider_response_id)
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
    # One answer from a paused one and its continuation.
    then = await _requested(llm, [*messages, answer], given, listener, continuations - 1)
    if answer.provider_response_id is not None and answer.provider_response_id == then.provider_response_id:
        return then  # the same answer, complete
    known = answer.usage.has_values() and then.usage.has_values()
    used = answer.usage + then.usage if known else type(then.usage)()
    return replace(then, parts=[*answer.parts, *then.parts], usage=used)


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
                delta = event.delta
                if delta.part_delta_kind == "text":
                    self._text(delta.content_delta)
                elif delta.part_delta_kind == "thinking":
                    self._thought(delta.content_delta)
                elif delta.part_delta_kind == "tool_call":
                    self._given(event.index, delta.args_delta)

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

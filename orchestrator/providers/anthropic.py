"""Models behind Anthropic's Messages API.

    pip install "fsm-orchestrator[anthropic]"

`anthropic_request` builds requests, `anthropic_answer` reads answers, and `fault` classifies failures.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import SecretStr

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.llm.message import Request, Response, encodable
from orchestrator.providers.answer_signal import MESSAGES
from orchestrator.providers.anthropic_answer import MessageAssembly, response_of
from orchestrator.providers.anthropic_request import conversation, tools
from orchestrator.providers.connection import (
    CONNECT_SECONDS,
    check_model,
    check_total_timeout,
    key_of,
    provider_name,
)
from orchestrator.providers.openai_schema import is_object
from orchestrator.providers.parameter import with_extra
from orchestrator.providers.prompt_cache import check_cache_seconds, with_breakpoints
from orchestrator.providers.readable_part import checked_kinds
from orchestrator.providers.reading import mapping, merged
from orchestrator.providers.schema_prompt import instructed
from orchestrator.providers.sdk import SdkModel
from orchestrator.providers.size_limit import DEFAULT_BYTES
from orchestrator.providers.tls import shared_context

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

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
        if client is not None and not _is_client(client):
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

    def __repr__(self) -> str:
        return f"Anthropic({self.model!r})"

    async def complete(self, request: Request) -> Response:
        """Answer one request; stream the pieces if it has an `on_delta`. Raises LLMError."""
        response = await super().complete(request)
        for _ in range(_PAUSES):
            if response.finish_reason != "pause_turn":
                break
            paused = replace(request, messages=[*request.messages, response.message()])
            response = _joined(response, await super().complete(paused))
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


def _joined(first: Response, then: Response) -> Response:
    """Return one answer from a paused one and its continuation."""
    content = merged([*_parts(first), *_parts(then)])
    reasoning = "\n\n".join(filter(None, (first.reasoning, then.reasoning)))
    used = None if first.usage is None or then.usage is None else first.usage + then.usage
    return replace(then, content=content, usage=used, reasoning=reasoning or None)


def _parts(response: Response) -> list[dict[str, Any]]:
    if isinstance(response.content, str):
        return [{"type": "text", "text": response.content}]
    return response.content or []


def _is_client(client: object) -> bool:
    """Return whether it is one of the SDK's asynchronous clients: Bedrock's and others have no common base class."""
    return hasattr(client, "messages") and inspect.iscoroutinefunction(getattr(client, "close", None))

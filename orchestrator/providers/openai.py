"""Models behind OpenAI's API, and behind the many servers that implement it.

    pip install "fsm-orchestrator[openai]"

The SDK does transport, authentication and addresses, with its retries off: `RetryPolicy` is the only retry layer.
`openai_chat` and `openai_responses` build requests and read answers; `fault` classifies failures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.llm.content_part import KINDS
from orchestrator.llm.message import Request, encodable
from orchestrator.providers.chat_server import server_of
from orchestrator.providers.connection import (
    CONNECT_SECONDS,
    check_model,
    check_total_timeout,
    key_of,
    provider_name,
)
from orchestrator.providers.openai_chat import ChatForm
from orchestrator.providers.openai_form import OpenAIOptions
from orchestrator.providers.openai_responses import ResponsesForm
from orchestrator.providers.prompt_cache import cache_key
from orchestrator.providers.readable_part import checked_kinds
from orchestrator.providers.sdk import ApiForm, SdkModel
from orchestrator.providers.size_limit import DEFAULT_BYTES
from orchestrator.providers.tls import shared_context

if TYPE_CHECKING:
    from openai import AsyncOpenAI


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

    @property
    def reports_cost(self) -> bool:
        """Whether the server reports the cost of each answer: OpenRouter does."""
        host = urlsplit(self.address).hostname or ""
        return host == "openrouter.ai" or host.endswith(".openrouter.ai")

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

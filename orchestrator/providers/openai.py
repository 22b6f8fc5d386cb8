"""Models behind OpenAI's API, and behind the many servers that speak it.

    pip install "fsm-orchestrator[openai]"

    llm = OpenAI("gpt-4o-mini")                                         # the key from OPENAI_API_KEY
    llm = OpenAI("qwen3", base_url="http://127.0.0.1:8080/v1")          # a compatible server
    llm = OpenAI("gpt-5", api="responses", timeout=120)
    llm = OpenAI("my-deployment", client=AsyncAzureOpenAI(...))         # the host's own client
    agent = Orchestrator(llm, tools=[search])

The SDK does transport, authentication and addresses, with its retries off: `RetryPolicy` is the only retry layer. What
is sent and how answers are read stands in `openai_chat` and `openai_responses`; what failures mean, in `fault`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.llm.message import encodable
from orchestrator.providers.connection import CONNECT_SECONDS, check_model, key_of
from orchestrator.providers.openai_chat import ChatForm
from orchestrator.providers.openai_form import OpenAIOptions
from orchestrator.providers.openai_responses import ResponsesForm
from orchestrator.providers.sdk import ApiForm, SdkModel
from orchestrator.providers.size_limit import DEFAULT_BYTES

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAI(SdkModel):
    """A model. Raises ConfigError for what cannot work, MissingExtra (an ImportError) without the extra.

    `base_url` is the address up to and with the version (`http://127.0.0.1:8080/v1`); None is OPENAI_BASE_URL, else
    OpenAI's. `api_key=None` is OPENAI_API_KEY. `timeout` is seconds without a byte from the server, the wait for the
    first included; connecting takes at most 5 of them. How long a whole answer may take is the dwell limit's business.
    `client` is a client of the SDK that the host made (another authentication, Azure, a proxy): it brings address, key
    and timeout, is used with retries off, and is not closed here.

    `structured="prompt"` puts an output schema into the prompt, for servers without `response_format: json_schema`;
    a schema whose top is no object always goes there. `stream_usage=False` leaves `stream_options` out, for servers
    that refuse it: streamed answers then report no tokens. `reasoning_field` is the name under which reasoning goes
    back to a server that wants it (`reasoning_content` for DeepSeek); None sends none. These three but the first are
    of chat completions.

    `max_response_bytes` is how much of an answer is read, after decompression: of a body, of each event of a stream,
    and of what is kept of a stream; 0 is no limit. A larger answer is an LLMError (`malformed`) that is not retried.

    Each event loop gets a connection pool of its own, closed with the loop; `aclose()`, or `async with`, closes the one
    of this loop before.
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
        structured: Literal["native", "prompt"] = "native",
        max_response_bytes: int = DEFAULT_BYTES,
        stream_usage: bool = True,
        reasoning_field: str | None = None,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtra("openai", "openai") from error
        check_model(model, structured, timeout, base_url)
        if api not in _FORMS:
            raise ConfigError(f"api is {api!r}; possible: {', '.join(_FORMS)}")
        if client is not None and not isinstance(client, openai.AsyncOpenAI):
            raise ConfigError(f"client is a {type(client).__name__}; possible: openai.AsyncOpenAI")
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigError("client brings its own address and key: give base_url and api_key to it")
        self.api = api
        self.base_url = base_url
        self.timeout = timeout
        form = _FORMS[api](OpenAIOptions(structured, stream_usage, reasoning_field))
        if client is None:
            super().__init__(model, form, key_of("OpenAI", api_key, base_url), None, max_response_bytes)
        else:
            own = client.with_options(max_retries=0)
            super().__init__(model, form, SecretStr(client.api_key), own, max_response_bytes)

    @property
    def reports_cost(self) -> bool:
        """The server says with each answer what it costs: OpenRouter does."""
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
            # Nothing is sent to where the host did not point.
            http_client=openai.DefaultAsyncHttpxClient(timeout=timeout, follow_redirects=False),
        )
        self._resource(client)  # loads its types, which takes a second
        return client

    def _resource(self, client: AsyncOpenAI) -> Any:
        return client.responses if self.api == "responses" else client.chat.completions

    def _sendable(self, client: AsyncOpenAI, body: dict[str, Any]) -> dict[str, Any]:
        """Return what `create` must have by name, and the body, which stands above it, as it is.

        By name, messages would be compared with the SDK's types one by one: 0.3 ms each, for all of a history, at every
        turn. Text that UTF-8 has no form for would stop the request before it is sent.
        """
        del client
        said = "input" if self.api == "responses" else "messages"
        return {"model": body["model"], said: [], "stream": body["stream"], "extra_body": encodable(body)}


_FORMS: dict[str, Callable[[OpenAIOptions], ApiForm]] = {"chat": ChatForm, "responses": ResponsesForm}

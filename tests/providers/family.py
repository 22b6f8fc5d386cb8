"""The families of models: for each one a protocol, and how a host builds its model at the address of a server."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

import pytest

from orchestrator.llm.port import LLM
from orchestrator.providers import Anthropic, OpenAI, PydanticAIModel
from tests.providers.converse_wire import CONVERSE
from tests.providers.grok_server import GROK, GrokServer
from tests.providers.loopback import Asked, Loopback, Reply
from tests.providers.wire import CHAT, COHERE, GEMINI, MESSAGES, RESPONSES, Wire

KEY = "key-0123456789"


class Family(NamedTuple):
    """A family: its protocol, a model of it at the address of a server, and what its adapter cannot do."""

    wire: Wire
    build: Callable[[str], LLM]
    model_class: str = ""
    """Its class in pydantic-ai."""
    images: bool = True
    cached: int = 5
    """Cached tokens that are counted of the 5 that the server reports."""
    library: str = ""
    """A library that this environment may lack."""
    server: Callable[[Callable[[Asked], Reply]], Any] = Loopback

    def llm(self, url: str) -> LLM:
        """Return the model at the address of a server.

        The libraries would load the certificates of the system for each client, and no server here has one.
        """
        if not self.model_class:
            return self.build(url)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
            patch.setattr(ssl.SSLContext, "load_default_certs", lambda *_, **__: None)
            return self.build(url)


def _named(name: str, path: str = "") -> Callable[[str], LLM]:
    """Return what builds a model that is given by name."""
    return lambda url: PydanticAIModel(name, base_url=url + path, api_key=KEY)


def _addressed(folder: str, title: str, name: str) -> Callable[[str], LLM]:
    """Return what builds a model object of a provider that takes no address: its client of OpenAI's SDK has it."""

    def build(url: str) -> LLM:
        provider = getattr(import_module(f"pydantic_ai.providers.{folder}"), f"{title}Provider")(api_key=KEY)
        provider.client.base_url = f"{url}/v1"
        model = getattr(import_module(f"pydantic_ai.models.{folder}"), f"{title}Model")
        return PydanticAIModel(model(name, provider=provider))

    return build


def _with_variables(name: str, address: str, **variables: str) -> Callable[[str], LLM]:
    """Return what builds a model by name whose library reads its address and credentials from variables."""

    def build(url: str) -> LLM:
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in {**variables, address: url}.items():
                patch.setenv(variable, value)
            return PydanticAIModel(name)

    return build


def _bedrock(url: str) -> LLM:
    """Build a model of Bedrock. For each one botocore would read its descriptions of all services again."""
    loaders = import_module("botocore.loaders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaders.JSONFileLoader, "load_file", staticmethod(_descriptions()))
        return _with_variables("bedrock:us.amazon.nova-lite-v1:0", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME", **AWS)(
            url
        )


@cache
def _descriptions() -> Callable[[str], Any]:
    return cache(import_module("botocore.loaders").JSONFileLoader().load_file)


def _codex(url: str) -> LLM:
    library = import_module("pydantic_ai.providers.openai_codex")
    tokens = library.OpenAICodexCredentials(access_token=KEY, refresh_token=KEY, account_id="a")
    provider = library.OpenAICodexProvider(tokens)
    provider.client.base_url = url
    model = import_module("pydantic_ai.models.openai_codex").OpenAICodexModel
    return PydanticAIModel(model("gpt-5-codex", provider=provider))


def _xai(url: str) -> LLM:
    provider = import_module("pydantic_ai.providers.xai").XaiProvider(api_key=KEY, api_host=url)
    model = import_module("pydantic_ai.models.xai").XaiModel
    return PydanticAIModel(model("grok-4-fast", provider=provider))


def _snowflake(url: str) -> LLM:
    provider = import_module("pydantic_ai.providers.snowflake").SnowflakeProvider(token=KEY, base_url=url)
    model = import_module("pydantic_ai.models.snowflake").SnowflakeModel
    return PydanticAIModel(model("claude-4-sonnet", provider=provider))


AWS = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": KEY}
FAMILIES: Mapping[str, Family] = {
    "openai": Family(CHAT, lambda url: OpenAI("m", base_url=f"{url}/v1", api_key=KEY)),
    "openai-responses": Family(
        RESPONSES, lambda url: OpenAI("m", base_url=f"{url}/v1", api_key=KEY, api="responses")
    ),
    "anthropic": Family(MESSAGES, lambda url: Anthropic("m", base_url=url, api_key=KEY)),
    "pydantic-ai:openai-chat": Family(CHAT, _named("openai-chat:gpt-4o", "/v1"), "OpenAIChatModel"),
    "pydantic-ai:openai": Family(RESPONSES, _named("openai:gpt-5", "/v1"), "OpenAIResponsesModel"),
    "pydantic-ai:anthropic": Family(MESSAGES, _named("anthropic:claude-sonnet-5-5"), "AnthropicModel"),
    "pydantic-ai:google": Family(GEMINI, _named("google:gemini-3.8-flash"), "GoogleModel"),
    "pydantic-ai:groq": Family(CHAT, _named("groq:meta-llama/llama-4-scout-17b-16e-instruct"), "GroqModel"),
    "pydantic-ai:mistral": Family(CHAT, _named("mistral:mistral-large-latest"), "MistralModel"),
    "pydantic-ai:bedrock": Family(CONVERSE, _bedrock, "BedrockConverseModel"),
    "pydantic-ai:cohere": Family(
        COHERE,
        _with_variables("cohere:command-a", "CO_BASE_URL", CO_API_KEY=KEY),
        "CohereModel",
        images=False,
        library="cohere",
    ),
    "pydantic-ai:huggingface": Family(
        CHAT,
        _named("huggingface:Qwen/Qwen3-VL-32B-Instruct"),
        "HuggingFaceModel",
        cached=0,
        library="huggingface_hub",
    ),
    "pydantic-ai:xai": Family(GROK, _xai, "XaiModel", library="xai_sdk", server=GrokServer),
    "pydantic-ai:openrouter": Family(
        CHAT, _addressed("openrouter", "OpenRouter", "openai/gpt-4o"), "OpenRouterModel"
    ),
    "pydantic-ai:cerebras": Family(
        CHAT, _addressed("cerebras", "Cerebras", "llama-4-scout"), "CerebrasModel", cached=0
    ),
    "pydantic-ai:crusoe": Family(CHAT, _addressed("crusoe", "Crusoe", "qwen3"), "CrusoeModel"),
    "pydantic-ai:ollama": Family(CHAT, _named("ollama:qwen3-vl", "/v1"), "OllamaModel"),
    "pydantic-ai:snowflake": Family(CHAT, _snowflake, "SnowflakeModel"),
    "pydantic-ai:zai": Family(CHAT, _named("zai:glm-4.5v", "/v1"), "ZaiModel"),
    "pydantic-ai:github-copilot": Family(CHAT, _named("github-copilot:gpt-4o"), "GitHubCopilotModel"),
    "pydantic-ai:bedrock-mantle": Family(
        RESPONSES, _named("bedrock-mantle:openai.gpt-oss-120b"), "BedrockMantleResponsesModel"
    ),
    "pydantic-ai:bedrock-mantle (chat)": Family(
        CHAT, _named("bedrock-mantle:openai.gpt-oss-safeguard-20b"), "BedrockMantleChatModel"
    ),
    "pydantic-ai:openai-codex": Family(RESPONSES, _codex, "OpenAICodexModel"),
}

COMPATIBLE = frozenset(
    f"pydantic-ai:{name}"
    for name in (
        *("openrouter", "cerebras", "crusoe", "ollama", "snowflake", "zai", "github-copilot"),
        *("bedrock-mantle", "bedrock-mantle (chat)", "openai-codex"),
    )
)
"""Families that share the code of `openai-chat` or `openai` in that library, in classes of their own."""
OLD_SDK = int(version("openai").split(".")[0]) < 3
"""The adapters of pydantic-ai need a newer SDK than ours does."""


def every(names: Iterable[str]) -> pytest.MarkDecorator:
    """Return the mark that calls a test with each of these families, in its fixture `family`."""
    cases = [pytest.param(name, marks=_marks(name)) for name in names]
    return pytest.mark.parametrize("family", cases, indirect=True)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    on_sdk = name in COMPATIBLE or name.startswith("pydantic-ai:openai")
    old = pytest.mark.skipif(OLD_SDK and on_sdk, reason="an older SDK of OpenAI")
    return [old, *([pytest.mark.campaign] if name in COMPATIBLE or FAMILIES[name].library else [])]

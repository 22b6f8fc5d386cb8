"""The name of a model's provider: from the address and the family, or the host's own; in metrics, spans and prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from openai import AsyncAzureOpenAI
from prometheus_client import CollectorRegistry

from orchestrator import Agent, ConfigError, Runtime, Usage
from orchestrator.llm.port import Price
from orchestrator.providers import Anthropic, Fallback, OpenAI, RateLimit, RateLimitedModel, price_table
from orchestrator.providers.price import genai_prices
from orchestrator.telemetry.metrics import Metrics
from orchestrator_callbacks.llm_loop.request_usage import Pricing
from tests.providers.loopback import Loopback, json_reply

ADDRESSES = {
    "https://api.openai.com/v1": "openai",
    "http://127.0.0.1:8080/v1": "openai",
    "https://shop.openai.azure.com/openai/v1": "azure.ai.openai",
    "https://shop.services.ai.azure.com/models": "azure.ai.inference",
    "https://models.github.ai/inference": "azure.ai.inference",
    "https://generativelanguage.googleapis.com/v1beta/openai/": "gcp.gemini",
    "https://us-central1-aiplatform.googleapis.com/v1/projects/p/endpoints/openapi": "gcp.vertex_ai",
    "https://aiplatform.googleapis.com/v1": "gcp.vertex_ai",
    "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1": "aws.bedrock",
    "https://api.cohere.ai/compatibility/v1": "cohere",
    "https://api.deepseek.com": "deepseek",
    "https://api.groq.com/openai/v1": "groq",
    "https://api.mistral.ai/v1": "mistral_ai",
    "https://api.perplexity.ai": "perplexity",
    "https://api.x.ai/v1": "x_ai",
    "https://openrouter.ai/api/v1": "openrouter",
    "https://api.moonshot.ai/v1": "moonshot_ai",
    "https://phoenix.ai/v1": "openai",
    "https://api.deepseek.com.evil.org/v1": "openai",
    "https://amazonaws.com.evil.org/v1": "openai",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_name_follows_from_the_address_and_else_from_the_family(address: str) -> None:
    name = ADDRESSES[address]
    assert OpenAI("m", base_url=address, api_key="k").provider == name


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (None, "anthropic"),
        ("http://127.0.0.1:8080", "anthropic"),
        ("https://api.deepseek.com/anthropic", "deepseek"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", "aws.bedrock"),
    ],
)
def test_the_family_of_messages_is_anthropic(address: str | None, name: str) -> None:
    assert Anthropic("m", base_url=address, api_key="k").provider == name


def test_a_client_of_the_host_has_its_own_address() -> None:
    client = AsyncAzureOpenAI(azure_endpoint="https://shop.openai.azure.com", api_key="k", api_version="v")
    assert OpenAI("m", client=client).provider == "azure.ai.openai"


def test_a_host_sets_another_name() -> None:
    assert OpenAI("m", api_key="k", provider="my-gateway").provider == "my-gateway"
    assert Anthropic("m", api_key="k", provider="my-gateway").provider == "my-gateway"


@pytest.mark.parametrize("name", ["", "My Gateway", "x" * 65, "ä"])
@pytest.mark.parametrize("model", [OpenAI, Anthropic])
def test_a_name_that_is_no_label_is_refused(model: type[OpenAI | Anthropic], name: str) -> None:
    with pytest.raises(ConfigError, match=r"provider is .*; possible: 1 to 64 lower-case letters"):
        model("m", api_key="k", provider=name)


def test_policies_around_a_model_have_its_name() -> None:
    one = OpenAI("m", base_url="https://api.groq.com/openai/v1", api_key="k")
    assert RateLimitedModel(one, RateLimit(concurrency=1)).provider == "groq"
    assert Fallback([one, Anthropic("n", api_key="k")]).models == {"m": "groq", "n": "anthropic"}


async def test_metrics_have_the_name() -> None:
    registry = CollectorRegistry()
    body = {
        "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    async with Loopback(lambda _: json_reply(body)) as server:
        llm = OpenAI("m", base_url=server.url, api_key="k", provider="my-gateway")
        await Agent(llm, name="a", runtime=Runtime(observers=[Metrics(registry)])).run("2+2?")
    labels = {"agent": "a", "provider": "my-gateway", "model": "m", "outcome": "ok"}
    assert registry.get_sample_value("orchestrator_llm_requests_total", labels) == 1


# ---- prices ----


class Bare:
    """A model without a provider, as OpenAI and Anthropic were."""

    async def complete(self, _: object) -> Any:
        raise NotImplementedError


TABLES: Mapping[str, Price] = {
    "by name": price_table({"gpt-4o-mini": (0.15, 0.6), "claude-haiku-4-5": (1.0, 5.0), "other": (9, 9)}),
    "with prefixes": price_table(
        {"gpt-4o-mini": (1, 2), "openai:gpt-4o-mini": (7, 7), "anthropic:x": (7, 7)}
    ),
    "of the package": genai_prices(),
    "of the package for one provider": genai_prices("openai"),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("model", ["gpt-4o-mini", "gpt-4o-mini-2024-07-18", "claude-haiku-4-5", "other"])
@pytest.mark.parametrize("base_url", [None, "http://127.0.0.1:1/v1", "https://api.deepseek.com/v1"])
def test_a_table_that_knows_a_model_gives_the_same_cost(table: str, model: str, base_url: str | None) -> None:
    usage, bare = Usage(1_000, 500, 100), Bare()
    before = Pricing(TABLES[table], bare, model).cost(usage, model)
    for llm in (
        OpenAI(model, base_url=base_url, api_key="k"),
        Anthropic(model, base_url=base_url, api_key="k"),
    ):
        now = Pricing(TABLES[table], llm, model).cost(usage, model)
        assert now == before if before is not None else now is None or llm.provider in ("openai", "anthropic")

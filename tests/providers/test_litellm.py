"""LiteLLM's proxy, the real one in an environment of its own, as a server that speaks OpenAI's protocol.

It translates each request to Anthropic's protocol, which the loopback server behind it speaks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from pydantic import BaseModel

from orchestrator import Agent, Runtime, tool
from orchestrator.errors import LLMError
from orchestrator.events import TextDelta
from orchestrator.llm.message import Message, Request
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers import OpenAI, price_table
from tests.benchmarks.contestant import NotMeasured
from tests.benchmarks.environments import environment
from tests.ports import free_port
from tests.providers.endpoint import GUARD
from tests.providers.loopback import Asked, Loopback, Reply, in_a_thread, json_reply
from tests.providers.wire import MESSAGES, WEATHER, Said

pytestmark = pytest.mark.timeout(900)  # the packages are installed once
PINS = Path(__file__).with_name("litellm_pins.txt")
KEY = "sk-0123456789abcdef0123456789abcdef"
CONFIG = """
model_list:
  - model_name: m
    litellm_params: {{model: anthropic/claude-test, api_base: "{url}", api_key: k}}
"""
NO_WAIT = RetryPolicy(base=0.0, max_delay=0.0, jitter=0.0)


class Proxy(NamedTuple):
    """The proxy, and the model server behind it, which answers with `script` in order."""

    url: str
    server: Loopback
    script: list[Said | Reply]

    def llm(self) -> OpenAI:
        return OpenAI("m", base_url=f"{self.url}/v1", api_key=KEY)


class City(BaseModel):
    """A place."""

    city: str


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    script: list[Said | Reply] = []

    def answer(asked: Asked) -> Reply:
        said = script.pop(0)
        return said if isinstance(said, Reply) else MESSAGES.reply(asked, said)

    folder = tmp_path_factory.mktemp("litellm")
    try:
        python = environment(Path(sys.prefix) / "litellm", PINS, compiled=False)
    except NotMeasured as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    port = free_port()
    with in_a_thread(answer) as server:
        (folder / "config.yaml").write_text(CONFIG.format(url=server.url))
        log = folder / "log"
        with log.open("w") as out:
            started = subprocess.Popen(
                [
                    *(python.parent / "litellm", "--config", folder / "config.yaml"),
                    *("--host", "127.0.0.1", "--port", str(port)),
                ],
                env={"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_MASTER_KEY": KEY}
                | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUNBUFFERED": "1"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            while "Uvicorn running" not in log.read_text():
                assert started.poll() is None, log.read_text()[-2_000:]
                time.sleep(0.2)
            with GUARD.allow("127.0.0.1", port):
                yield Proxy(f"http://127.0.0.1:{port}", server, script)
        finally:
            started.terminate()
            started.wait(timeout=60)


@pytest.fixture
def proxy(running: Proxy) -> Proxy:
    running.script.clear()
    running.server.asked.clear()
    return running


def test_its_openai_is_one_that_our_extra_accepts() -> None:
    """So that both can be installed into one environment."""
    pins = dict(line.split("==") for line in PINS.read_text().splitlines() if "==" in line)
    ours = [Requirement(one) for one in requires("fsm-orchestrator") or ()]
    assert {"openai", "pydantic"} <= {one.name for one in ours} & pins.keys()
    wanted = [one for one in ours if one.marker is None or one.name == "openai"]
    assert [one for one in wanted if one.name in pins and not one.specifier.contains(pins[one.name])] == []


@pytest.mark.campaign
async def test_tools_stream_and_usage_pass_through_it(proxy: Proxy) -> None:
    proxy.script.extend([WEATHER, "It is sunny."])
    price = price_table({"m": (1e6, 1e7, 1e5), "claude-test": (1e6, 1e7, 1e5), "m-dated": (1e6, 1e7, 1e5)})
    agent = Agent(proxy.llm(), tools=[weather], runtime=Runtime(price=price, observers=()))
    async with agent.stream("Weather in Oslo?") as stream:
        pieces = [event.text async for event in stream if isinstance(event, TextDelta)]
        result = await stream.result()
    assert result.output == "".join(pieces) == "It is sunny.", result.error
    assert "Oslo: sunny" in proxy.server.asked[1].body.decode()
    usage = result.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (40, 10, 14)
    assert usage.cost == 2 * (15 * 1.0 + 5 * 0.1 + 7 * 10.0)


@pytest.mark.campaign
async def test_structured_output_passes_through_it(proxy: Proxy) -> None:
    proxy.script.extend(['{"city": "Oslo"}'] * 3)
    result = await Agent(proxy.llm(), output_type=City, observers=()).run("Which city?")
    assert result.output == City(city="Oslo"), result.error


@pytest.mark.campaign
async def test_its_errors_have_their_kinds(proxy: Proxy) -> None:
    wrong = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens"},
    }
    proxy.script.extend([json_reply(wrong, 400)])
    with pytest.raises(LLMError) as failed:
        await proxy.llm().complete(Request((Message("user", "hi"),)))
    assert failed.value.kind == "context_length"
    with pytest.raises(LLMError) as refused:
        await OpenAI("m", base_url=f"{proxy.url}/v1", api_key="sk-wrong").complete(
            Request((Message("user", "hi"),))
        )
    assert refused.value.kind in {"auth", "client_error"}
    with pytest.raises(LLMError, match=f"at {proxy.url}/nowhere/chat/completions"):
        await OpenAI("m", base_url=f"{proxy.url}/nowhere", api_key=KEY).complete(
            Request((Message("user", "hi"),))
        )

"""Histories of a handoff: an agent reads what another one called and thought, on the servers of any two vendors.

Each server is strict: it refuses what its vendor refuses. Each test names the report of another library that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator import Agent, tool
from orchestrator.providers import Anthropic, Fallback, OpenAI
from tests.providers.loopback import Asked, Loopback, Reply, json_reply
from tests.providers.test_history import ADAPTERS, KEY
from tests.providers.wire import MESSAGES, Call, Wire
from tests.runtime.stage import NO_WAIT

TRANSFER, BACK = Call("transfer_to_billing", {}, "call_2"), Call("transfer_to_triage", {}, "call_3")
FIRST = ("openai", "responses", "anthropic", "pydantic-ai:google")


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "order 7"


def script(wire: Wire, *said: str | Call) -> Callable[[Asked], Reply]:
    left = iter(said)
    return lambda asked: wire.reply(asked, next(left))


# langgraph-supervisor-py 67, anthropic-sdk-typescript 602: an agent without tools reads calls, and the vendor refuses
# the request. beeai-framework 963, openai-agents-js 42: the call of the handoff has no result.
# earendil-works/pi 9048: the ids of one vendor's calls do not fit the pattern of another.
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("second", ADAPTERS)
async def test_an_agent_without_tools_reads_the_calls_of_an_agent_with_another_vendor(
    first: str, second: str
) -> None:
    wire, build, vendor = ADAPTERS[first]
    other_wire, other_build, other_vendor = ADAPTERS[second]
    said = script(wire, Call("look", {}), TRANSFER)
    async with (
        Loopback(said, vendor=vendor) as server,
        Loopback(script(other_wire, "It is paid."), vendor=other_vendor) as other,
    ):
        billing = Agent(other_build(other.url), name="billing", observers=())
        triage = Agent(build(server.url), name="triage", tools=[look], handoffs=[billing], observers=())
        result = await triage.run("Is it paid?")
    assert (result.output, result.agent) == ("It is paid.", "billing"), result.error


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_conversation_that_comes_back_is_accepted_by_the_first_vendor(
    first: str, *, streamed: bool
) -> None:
    wire, build, vendor = ADAPTERS[first]
    other_wire, other_build, other_vendor = ADAPTERS["anthropic" if first != "anthropic" else "responses"]
    async with (
        Loopback(script(wire, TRANSFER, "Good bye."), vendor=vendor) as server,
        Loopback(script(other_wire, BACK), vendor=other_vendor) as other,
    ):
        billing = Agent(other_build(other.url), name="billing", handoffs=["triage"], observers=())
        triage = Agent(build(server.url), name="triage", handoffs=[billing], observers=())
        if streamed:
            async with triage.stream("Is it paid?") as stream:
                result = await stream.result()
        else:
            result = await triage.run("Is it paid?")
    assert (result.output, result.agent) == ("Good bye.", "triage"), result.error


# ---- thinking ----


def thinking(asked: Asked) -> Reply:
    """Anthropic's answer with a thought that is signed for the model of the request, before a handoff or a text."""
    body = MESSAGES.whole(
        TRANSFER if asked.json.get("tools") and "tool_choice" not in asked.json else "Paid."
    )
    signed = {"type": "thinking", "thinking": "Hm.", "signature": f"for {asked.json['model']}"}
    return json_reply({**body, "content": [signed, *body["content"]]})


def reasoned(asked: Asked) -> Reply:
    """The answer of the Responses API with a reasoning item that is encrypted for the model of the request."""
    wire = ADAPTERS["responses"][0]
    body = wire.whole(TRANSFER if asked.json.get("tools") else "Paid.")
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "encrypted_content": f"for {asked.json['model']}",
    }
    return json_reply({**body, "output": [item, *body["output"]]})


def claude(model: str, url: str) -> Any:
    return Anthropic(model, base_url=url, api_key=KEY)


def gpt(model: str, url: str) -> Any:
    return OpenAI(model, base_url=url, api_key=KEY, api="responses")


def signatures(asked: Asked) -> Iterator[str]:
    for item in asked.json.get("messages") or asked.json["input"]:
        for part in (item, *(item["content"] if isinstance(item.get("content"), list) else ())):
            if signature := part.get("signature") or part.get("encrypted_content"):
                yield signature
                assert "model" not in part, "the vendors know no such member"


# vybestack/llxprt-code 2335, openai-agents-python 569: thinking is sent to a model that did not make it.
# cymoo/lovia 7: thinking is lost at the handoff, also for the model that made it.
@pytest.mark.parametrize(
    ("make", "reply"), [(claude, thinking), (gpt, reasoned)], ids=["anthropic", "openai"]
)
@pytest.mark.parametrize("second", ["large", "small"])
async def test_thinking_goes_back_to_the_model_that_made_it_and_to_no_other(
    make: Callable[[str, str], Any], reply: Callable[[Asked], Reply], second: str
) -> None:
    async with Loopback(reply) as server:
        billing = Agent(make(second, server.url), name="billing", observers=())
        triage = Agent(make("large", server.url), name="triage", handoffs=[billing], observers=())
        result = await triage.run("Is it paid?")
    assert (result.output, result.agent) == ("Paid.", "billing"), result.error
    assert list(signatures(server.asked[1])) == (["for large"] if second == "large" else [])


# can1357/oh-my-pi 6379: a conversation that moves to another model of the vendor fails with each request.
async def test_thinking_of_one_model_does_not_reach_the_next_model_of_a_fallback() -> None:
    @tool(effect="pure")
    def transfer_to_billing() -> str:
        """Do nothing."""
        return "ok"

    def reply(asked: Asked) -> Reply:
        if len(server.asked) == 1:
            return thinking(asked)
        return Reply(503) if asked.json["model"] == "large" else json_reply(MESSAGES.whole("Paid."))

    async with Loopback(reply) as server:
        llm = Fallback([claude("large", server.url), claude("small", server.url)])
        result = await Agent(llm, tools=[transfer_to_billing], observers=(), retry=NO_WAIT).run("Is it paid?")
    assert result.output == "Paid.", result.error
    sent = {asked.json["model"]: list(signatures(asked)) for asked in server.asked[1:]}
    assert sent == {"large": ["for large"], "small": []}

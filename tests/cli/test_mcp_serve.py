"""`mcp serve`: the SDK's client uses a durable agent of ours, with an approval in the middle, and a kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult

from tests.engines.stage import until
from tests.node import NODE, node_modules

Cli = Callable[..., Any]
AGENTS = """
import os
from pathlib import Path

from orchestrator import Agent, Response, ToolCall, ToolContext, tool
from orchestrator.tools.input_request import InputRequest, InputRequired
from orchestrator.testing import FunctionLLM

HERE = Path(__file__).parent
with (HERE / "pids").open("a") as out:
    out.write(f"{os.getpid()}\\n")


async def model(request):
    last = request.messages[-1]
    if last.role == "tool":
        return Response(f"Done: {last.text}")
    if "book" in last.text:
        return Response(None, (ToolCall("1", "book", "{}"),))
    if "pay" not in last.text:
        return Response(f"You said {last.text}")
    return Response(None, (ToolCall("1", "pay", '{"amount": 5}'),))


@tool(approval=True)
def pay(amount: int) -> str:
    '''Pay.'''
    with (HERE / "paid").open("a") as out:
        out.write(f"{amount}\\n")
    return f"paid {amount}"


SEAT = {"type": "object", "properties": {"seat": {"enum": ["window", "aisle"]}}, "required": ["seat"]}


@tool
def book(context: ToolContext) -> str:
    '''Book.'''
    if "seat" not in context.input.answers:
        requests = {"seat": InputRequest("Which seat?", SEAT), "pay": InputRequest("Pay.", url="https://a.example")}
        raise InputRequired(requests)
    seat, paid = context.input.answers["seat"], context.input.answers["pay"]
    return f"{seat.content.get('seat')} {seat.action}, paid: {paid.action}"


def support(journal):
    return Agent(FunctionLLM(model), tools=[pay, book], name="support", journal=journal, observers=())
"""
PROMPT = {"prompt": "pay 5"}


@pytest.fixture
def serving(folder: Path) -> Path:
    (folder / "my_agents.py").write_text(AGENTS)
    return folder


def command(folder: Path) -> StdioServerParameters:
    words = ["-m", "orchestrator", "mcp", "serve", "--agent", "my_agents:support"]
    return StdioServerParameters(command=sys.executable, args=words, cwd=folder, env=dict(os.environ))


def approving(asked: list[str], action: Any = "accept", decision: str = "approve") -> Any:
    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        content = {"decision": decision, "reason": "it is due"} if action == "accept" else None
        return ElicitResult(action=action, content=content)

    return answer


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert block.type == "text"
    return block.text


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_of_each_era_calls_an_agent_and_its_user_approves_and_fills_in_the_form_of_a_tool(
    serving: Path, mode: str
) -> None:
    approved: list[str] = []
    asked: list[Any] = []
    approve = approving(approved)

    async def answer(context: Any, params: Any) -> ElicitResult:
        if params.message.startswith("May the agent"):
            decided: ElicitResult = await approve(context, params)
            return decided
        asked.append(params)
        return ElicitResult(action="accept", content={"seat": "aisle"} if params.mode == "form" else None)

    callback: Any = answer
    async with Client(command(serving), mode=mode, elicitation_callback=callback) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "support"
        plain = await client.call_tool("support", {"prompt": "hello"})
        assert (text_of(plain), plain.is_error) == ("You said hello", False)
        result = await client.call_tool("support", PROMPT)
        booked = await client.call_tool("support", {"prompt": "book"})
    assert approved == ['May the agent call pay?\npay {"amount": 5}']
    assert text_of(result) == "Done: paid 5"
    assert result.structured_content["outcome"] == "completed"
    assert (serving / "paid").read_text() == "5\n"
    assert text_of(booked) == "Done: aisle accept, paid: accept"
    assert [one.message for one in asked] == ["Which seat?", "Pay.\nhttps://a.example"]
    assert asked[0].requested_schema["required"] == ["seat"]
    assert asked[1].url == "https://a.example"


@pytest.mark.campaign
@pytest.mark.canary
async def test_a_call_continues_after_a_kill_9_with_the_answer_of_the_user(serving: Path) -> None:
    async with Client(command(serving), elicitation_callback=approving([])) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "support"
        plain = await client.call_tool("support", {"prompt": "hello"})
        assert (text_of(plain), plain.is_error) == ("You said hello", False)
        asked = await client.session.call_tool("support", PROMPT, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        assert asked.input_requests is not None
        assert list(asked.input_requests) == ["1:0"]
        os.kill(int((serving / "pids").read_text()), signal.SIGKILL)
    assert not (serving / "paid").exists()
    async with Client(command(serving), elicitation_callback=approving([])) as client:
        answer = ElicitResult(action="accept", content={"decision": "approve"})
        again: Any = {"input_responses": {"1:0": answer}, "request_state": asked.request_state}
        for _ in range(2):  # a client that repeats its call gets the same run
            result = await client.session.call_tool("support", PROMPT, **again)
            assert text_of(result) == "Done: paid 5"
    assert (serving / "paid").read_text() == "5\n"


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("action", "decision", "text"),
    [
        ("accept", "reject", '{"error":"a person rejected this call: it is due","type":"Rejected"}'),
        ("decline", "", '{"error":"a person rejected this call","type":"Rejected"}'),
    ],
)
async def test_a_user_who_declines_rejects_the_call(
    serving: Path, action: str, decision: str, text: str
) -> None:
    async with Client(command(serving), elicitation_callback=approving([], action, decision)) as client:
        assert text_of(await client.call_tool("support", PROMPT)) == f"Done: {text}"
    assert not (serving / "paid").exists()


@asynccontextmanager
async def over_http(folder: Path, *words: str) -> AsyncIterator[str]:
    serve = ("-m", "orchestrator", "mcp", "serve", "--agent", "my_agents:support", "--http", "0")
    with (folder / "served").open("w") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *serve, *words, cwd=folder, stderr=said
        )
        try:
            await until(
                lambda: "serving at " in (folder / "served").read_text() or process.returncode is not None, 60
            )
            assert process.returncode is None, (folder / "served").read_text()
            yield (folder / "served").read_text().strip().rpartition(" ")[2]
            process.terminate()
            assert await process.wait() == 0, (folder / "served").read_text()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.campaign
async def test_a_client_without_elicitation_over_http_reads_how_a_person_answers_and_calls_again(
    serving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVE_TOKEN", "secret-" * 4)
    async with over_http(serving, "--token-env", "SERVE_TOKEN") as url:
        async with httpx2.AsyncClient() as http:
            refused = await http.post(url, json={})
            assert refused.status_code == 401
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {'secret-' * 4}"}) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            waits = await client.call_tool("support", PROMPT)
            run_id = waits.structured_content["run_id"]
            assert f"`orchestrator runs respond {run_id}`" in text_of(waits)
            approve = [sys.executable, "-m", "orchestrator", "runs", "approve", run_id, "--by", "ann"]
            await asyncio.to_thread(subprocess.run, approve, cwd=serving, check=True, capture_output=True)
            result = await client.call_tool("support", {"run_id": run_id})
            assert text_of(result) == "Done: paid 5"
            other = await client.call_tool("support", {"run_id": "another"})
            assert other.is_error
            assert "another" in text_of(other)


@pytest.mark.campaign
def test_the_inspector_calls_an_agent_and_reads_the_result_once_a_person_has_approved(
    cli: Cli, serving: Path
) -> None:
    program = node_modules(Path(__file__).with_name("mcp_inspector")) / ".bin" / "mcp-inspector"

    def inspect(*words: str) -> Any:
        serve = [sys.executable, "-m", "orchestrator", "mcp", "serve", "--agent", "my_agents:support"]
        call = [str(NODE), str(program), "--cli", *serve, *words]
        done = subprocess.run(call, cwd=serving, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    asked = ("--method", "tools/call", "--tool-name", "support", "--tool-arg")
    assert [tool["name"] for tool in inspect("--method", "tools/list")["tools"]] == ["support"]
    assert inspect(*asked, "prompt=hello")["content"] == [{"type": "text", "text": "You said hello"}]
    run_id = inspect(*asked, "prompt=pay 5")["structuredContent"]["run_id"]
    assert cli("runs", "approve", run_id, "--by", "ann").code == 0
    assert inspect(*asked, f"run_id={run_id}")["content"][0]["text"] == "Done: paid 5"
    assert (serving / "paid").read_text() == "5\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--agent", "my_agents:nothing"), "my_agents has no 'nothing'"),
        (
            ("--agent", "my_agents:support", "--agent", "support=my_agents:support"),
            "two agents have one name",
        ),
        (("--agent", "my_agents:support", "--http", "0", "--host", "192.0.2.1"), "give --token-env NAME"),
        (
            ("--agent", "my_agents:support", "--token-env", "NO_SUCH_TOKEN"),
            "no such environment variable is set",
        ),
        (
            ("--agent", "my_agents:support", "--http", "0", "--token-env", "SHORT_TOKEN"),
            "SHORT_TOKEN has 15 characters; it must have at least 16",
        ),
        (
            ("--agent", "my_agents:support", "--http", "0", "--proxy-headers", "proxy"),
            "give the address of the proxy or its network",
        ),
    ],
)
def test_a_server_that_cannot_work_is_one_sentence(
    cli: Cli,
    serving: Path,
    one_sentence: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setenv("SHORT_TOKEN", "x" * 15)
    done = cli("mcp", "serve", *words)
    assert done.code == 2
    assert said in one_sentence(done)

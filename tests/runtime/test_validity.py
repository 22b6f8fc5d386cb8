"""Whatever happens in a run, its history can be the beginning of a next one. Random scripts, random faults."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.deps import POINTS, LoopRun
from tests.runtime.stage import Notebook, agent, faults

TOOLS = ("good", "bad", "threaded", "alone", "unknown", "GOOD")

calls = st.builds(
    ToolCall,
    st.sampled_from(("", "1", "1", "call_a")),
    st.sampled_from(TOOLS),
    st.sampled_from(('{"n": 1}', '{"n": 2}', "{}", "", "null", '{"n": ')),
)
replies = st.one_of(
    st.sampled_from(("", "text", "[1]", '{"error": "x"}', "```json\n[2]\n```")),
    st.lists(calls, min_size=1, max_size=4).map(tuple),
    st.sampled_from((ConnectionResetError, ValueError)),
)
limits = st.builds(
    Limits,
    max_iterations=st.integers(0, 6),
    max_tool_errors=st.integers(0, 3),
    max_repeated_success=st.integers(0, 2),
    max_no_progress=st.integers(0, 3),
    max_tool_calls=st.integers(0, 5),
    max_input_tokens=st.sampled_from((0, 30)),
    max_retries=st.integers(0, 2),
    max_concurrent_tools=st.integers(0, 2),
    completion_retries=st.integers(0, 2),
    max_restarts=st.integers(0, 2),
    context_limit=st.sampled_from((0, 20)),
    compaction_threshold=st.sampled_from((0.0, 0.5)),
    guidance=st.integers(0, 2),
    wrap_up_turns=st.integers(0, 1),
    memory_seconds=st.just(0.01),
)
HOOKS = ("enter_evaluate_response", "leave_process_tools", "before_restart_loop", "after_tools_executed")


@dataclass
class Fault:
    """Something that goes wrong at a host's hook, the n-th time it is passed: an error, or a cancellation."""

    name: str
    at: int
    cancels: bool

    def hooks(self, cancel: Any) -> list[object]:
        async def hook(run: LoopRun, value: object = None) -> None:
            self.at -= 1
            if self.at == 0:
                if not self.cancels:
                    raise RuntimeError(self.name)
                cancel(run.run_id)
                await asyncio.sleep(0)

        async def point(run: LoopRun, value: object) -> None:
            await hook(run, value)

        async def plain(run: LoopRun) -> None:
            await hook(run)

        holder = type("Host", (), {})()
        setattr(holder, self.name, point if self.name in POINTS else plain)
        return [holder]


broken_hooks = st.one_of(
    st.none(), st.builds(Fault, st.sampled_from((*POINTS, *HOOKS)), st.integers(1, 4), st.booleans())
)


async def good(n: int) -> str:
    await asyncio.sleep(0)
    return f"good {n}"


async def bad(n: int = 0) -> str:
    raise ValueError("bad")


def threaded(n: int) -> str:
    return f"threaded {n}"


@tool(sequential=True, name="alone")
async def alone(n: int) -> str:
    return "alone"


@given(
    script=st.lists(replies, max_size=12),
    limits=limits,
    fault=broken_hooks,
    memory=st.sampled_from((None, "", "store", "prepare", "compact", "store_failure")),
    typed=st.booleans(),
)
async def test_the_history_is_valid_after_every_run(
    script: list[Any], limits: Limits, fault: Fault | None, memory: str | None, typed: bool
) -> None:
    def model(request: Request) -> Response:
        reply = script.pop(0) if script else "the end"
        if isinstance(reply, type):
            raise reply("the model broke")
        if isinstance(reply, tuple):
            return Response(None, reply, usage=Usage(10, 1))
        return Response(reply, usage=Usage(10, 1))

    cancelling: list[str] = []

    def cancel(run_id: str) -> None:
        cancelling.append(run_id)
        runner.cancel(run_id)

    runner: Agent = agent(
        FunctionLLM(model),
        [good, bad, threaded, alone],
        limits=limits,
        memory=None if memory is None else Notebook(broken={memory}),
        output_type=list[int] if typed else None,
        hooks=fault.hooks(cancel) if fault else (),
    )
    result = await runner.run("go", conversation_id="c")
    assert not faults(result.messages)
    assert result.reason in REASONS[result.outcome]
    assert not cancelling or result.outcome is Outcome.CANCELLED
    if result.outcome is Outcome.FAILED:
        assert result.error is not None
    if limits.max_iterations:
        assert sum(t.event == "llm_response" for t in result.transitions) <= limits.max_iterations
    script.clear()
    limits_of_next = Limits(memory_seconds=0.01)
    again = await runner.run("and now?", conversation_id="c", limits=limits_of_next)
    assert again.messages[: len(result.messages)] == result.messages
    assert not faults(again.messages)


def test_what_a_provider_would_refuse_is_found() -> None:
    asks = Message("assistant", None, (ToolCall("1", "a"), ToolCall("2", "b")))
    first, second = (Message("tool", "x", (), number, name) for number, name in (("1", "a"), ("2", "b")))
    assert not faults([asks, first, second])
    assert faults([asks, first])
    assert faults([asks, second, first])
    assert faults([asks, first, second, second])
    assert faults([first])

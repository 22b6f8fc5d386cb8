"""Code mode and tools mode in the local engine: begun there, left to it, and taken up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.operator_command import OperatorCommand
from orchestrator.engines.run_queue import Phase
from orchestrator.errors import ConfigError, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.machines.rlm.policy import NestedConfig, SimpleNestedCallPolicy
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.tools.spec import tool
from tests.runtime.stage import until
from tests.with_runtime import with_runtime

BLOCK = "```repl\nfound = context.split()[1]\n```\nFINAL_VAR(found)"


async def test_an_engine_answers_prompts_with_their_context() -> None:
    async with LocalEngine(Rlm(ScriptedLLM([BLOCK]), observers=())) as engine:
        result = await (await engine.submit(("Who?", "here Santiago fishes"), run_id="r"))
    assert (result.outcome, result.output, result.run_id) == (Outcome.COMPLETED, "Santiago", "r")


@pytest.mark.parametrize("mode", ["code", "tools"])
async def test_an_engine_takes_up_what_was_left_to_it_of_both_modes(mode: str) -> None:
    journal = MemoryJournal()
    client = Rlm(ScriptedLLM([]), mode=mode, journal=journal, observers=())  # type: ignore[arg-type]
    await client.deposit("Who?", "here Santiago fishes", run_id="r", tenant="acme")
    llm = ScriptedLLM([BLOCK if mode == "code" else "Santiago"])
    worker = Rlm(llm, mode=mode, journal=journal, observers=())  # type: ignore[arg-type]
    async with LocalEngine(worker, recover="resume") as engine:
        result = await engine.recovered["r"]
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "Santiago")


ASKS = "```repl\nkept = 'kept'\nprint(llm_query_batched(['a', 'b']))\n```"


class Models:
    """The model of a run and that of its questions, and how often each was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answering: Callable[[], None] = lambda: None

    def main(self, request: Request) -> Any:
        self.asked.append("main")
        self.answering()
        turn = sum(message.role == "assistant" for message in request.messages)
        return (ASKS, "```repl\nprint(kept)\n```", f"FINAL({request.messages[-1].text.split()[-1]})")[turn]

    def sub(self, request: Request) -> Any:
        self.asked.append("sub")
        return "yes" if request.messages[0].role != "system" else "FINAL(below)"

    def rlm(self, journal: MemoryJournal | None = None, **options: Any) -> Rlm:
        llm, sub = FunctionLLM(self.main, model="big"), FunctionLLM(self.sub, model="small")
        return Rlm(
            llm, sub_model=sub, **with_runtime(journal=journal or MemoryJournal(), observers=(), **options)
        )


async def test_a_run_waits_for_its_blocked_model_and_goes_on_in_the_same_repl() -> None:
    models, journal = Models(), MemoryJournal()
    async with LocalEngine(models.rlm(journal)) as engine:
        with pytest.raises(ConfigError, match="has no model 'other'; it has: big, small"):
            await engine.control("block_model", model="other", by="ann")
        await engine.control("block_model", model="small", by="ann")
        handle = await engine.submit(("Who?", "here"), run_id="r")
        await until(lambda: handle.phase is Phase.WAITING)
        assert models.asked == ["main"], "both questions wait"
        await engine.control("block_model", model="big", by="ann", why="too dear")
        await engine.control("unblock_model", model="small", by="ann")
        await until(lambda: models.asked == ["main", "sub", "sub"] and handle.phase is Phase.WAITING)
        parked = (await journal.load("r"))[-1].body
        assert (parked["reason"], parked["model"], parked["why"]) == ("waiting", "big", "too dear")
        held = await engine.submit(("Who?", "here"))
        await until(lambda: held.phase is Phase.QUEUED)
        await engine.control("unblock_model", model="big", by="ann")
        result = await handle
        assert (result.outcome, result.output) == (Outcome.COMPLETED, "kept")
        assert (await held).output == "kept"
    assert models.asked.count("sub") == 4


async def test_a_run_below_waits_for_its_blocked_model() -> None:
    models = Models()
    async with LocalEngine(models.rlm(limits=RlmLimits(max_depth=2))) as engine:
        handle = await engine.submit(("Who?", "here"))
        await engine.control("block_model", model="small", by="ann")
        await until(lambda: bool(engine._active_commands._waiting))
        assert models.asked == ["main"]
        await engine.control("unblock_model", model="small", by="ann")
        assert (await handle).output == "kept"
    assert models.asked == ["main", "sub", "sub", "main", "main"]


async def test_a_run_that_others_may_go_on_with_waits_here_in_the_midst_of_its_work_and_parks_before_it() -> (
    None
):
    models, journal = Models(), MemoryJournal()
    rlm = models.rlm(journal)
    rlm.parks = True
    async with LocalEngine(rlm) as engine:
        await engine.control("block_model", model="small", by="ann")
        handle = await engine.submit(("Who?", "here"))
        await until(lambda: handle.phase is Phase.WAITING)
        assert models.asked == ["main"]
        await engine.control("unblock_model", model="small", by="ann")
        assert (await handle).output == "kept", "in the same REPL"
        models.answering = lambda: engine._active_commands.take(
            OperatorCommand("block_model", "ann", about="big")
        )
        with pytest.raises(Suspended):
            await (await engine.submit(("Who?", "here"), run_id="r"))
    records = await journal.load("r")
    assert records[-1].body["reason"] == "waiting"
    assert [one.body["dest"] for one in records if one.kind == "transition"] == ["PROMPTING", "EXECUTING"]
    assert sum(one.kind == "reserved" for one in records) == 1, "no code ran, nothing was asked"


async def test_calls_of_a_disabled_tool_are_answered_in_tools_mode() -> None:
    ran: list[str] = []

    @tool(effect="pure")
    def look(at: int) -> str:
        """Look."""
        ran.append(str(at))
        return "seen"

    def model(request: Request) -> Any:
        last = request.messages[-1]
        return last.text if last.role == "tool" else call("look", at=1)

    rlm = Rlm(FunctionLLM(model), mode="tools", tools=[look], observers=())
    async with LocalEngine(rlm) as engine:
        await engine.control("disable_tool", tool="look", by="ann", why="it bites")
        result = await (await engine.submit("Look!"))
        assert "switched off by ann: it bites" in (result.output or "")
        assert not ran
        await engine.control("enable_tool", tool="look", by="ann")
        assert (await (await engine.submit("Look!"))).output == "seen"
    assert ran == ["1"]


@pytest.mark.parametrize("mode", ["code", "tools"])
async def test_tools_that_only_runs_below_have_can_be_named_in_orders(mode: str) -> None:
    ran: list[str] = []

    @tool(effect="pure")
    def look(at: int) -> str:
        """Look."""
        ran.append(str(at))
        return "seen"

    def above(request: Request) -> Any:
        last = request.messages[-1]
        if mode == "tools":
            return last.text if last.role == "tool" else call("context_query", question="Look!")
        return "FINAL_VAR(said)" if "Result" in last.text else "```repl\nsaid = llm_query('Look!')\n```"

    def below(request: Request) -> Any:
        last = request.messages[-1]
        return last.text if last.role == "tool" else call("look", at=1)

    nested = SimpleNestedCallPolicy(min_chars=0, config=NestedConfig("tools", (look,)))
    rlm = Rlm(
        FunctionLLM(above),
        mode=mode,  # type: ignore[arg-type]
        sub_model=FunctionLLM(below),
        nested=nested,
        limits=RlmLimits(max_depth=2),
        observers=(),
    )
    async with LocalEngine(rlm) as engine:
        with pytest.raises(ConfigError, match=r"has no tool .lok.; it has: context_query, .*look"):
            await engine.control("disable_tool", tool="lok", by="ann")
        await engine.control("disable_tool", tool="look", by="ann", why="it bites")
        result = await (await engine.submit(("Look!", "here")))
        assert "switched off by ann: it bites" in (result.output or "")
        assert not ran
        await engine.control("enable_tool", tool="look", by="ann")
        assert "seen" in str((await (await engine.submit(("Look!", "here")))).output)
    assert ran == ["1"]


class Undecided(SimpleNestedCallPolicy):
    def get_nested_config(self) -> NestedConfig:
        raise LookupError("not yet")


class Astray(SimpleNestedCallPolicy):
    def get_nested_config(self) -> Any:
        return SimpleNamespace(agent_mode="nowhere", tools=())


@pytest.mark.parametrize("nested", [Undecided(), Astray()], ids=["none", "no such mode"])
async def test_a_policy_that_cannot_say_what_runs_below_get_keeps_nobody_from_giving_orders(
    nested: SimpleNestedCallPolicy,
) -> None:
    async with LocalEngine(Rlm(ScriptedLLM(["FINAL(x)"]), nested=nested, observers=())) as engine:
        with pytest.raises(ConfigError, match="has no tool 'look'; it has: none"):
            await engine.control("disable_tool", tool="look", by="ann")
        assert (await (await engine.submit("x"))).output == "x"


async def test_limits_of_another_graph_are_refused() -> None:
    async with LocalEngine(Rlm(ScriptedLLM([]), observers=())) as engine:
        with pytest.raises(ConfigError, match="RlmLimits"):
            await engine.submit("Who?", limits=Limits())

"""Code mode and tools mode in the local engine: begun there, left to it, and taken up."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engines.local import LocalEngine
from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.approval.project import Approval
from orchestrator.runtime.ralph import RalphOrchestrator
from orchestrator.runtime.rlm import Rlm

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


def test_what_is_bound_to_a_directory_is_refused_in_one_sentence(tmp_path: Path) -> None:
    ralph = RalphOrchestrator(print, print, print, observers=())
    with pytest.raises(
        ConfigError, match="the runs of RalphOrchestrator are bound to the directory of its session"
    ):
        LocalEngine({"loop": ralph})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="the runs of Approval are bound to the directory of its project"):
        LocalEngine(Approval(tmp_path))  # type: ignore[arg-type]


async def test_limits_of_another_graph_are_refused() -> None:
    async with LocalEngine(Rlm(ScriptedLLM([]), observers=())) as engine:
        with pytest.raises(ConfigError, match="RlmLimits"):
            await engine.submit("Who?", limits=Limits())

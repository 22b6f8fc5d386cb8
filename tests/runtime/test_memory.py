"""The memory port: what it puts before a conversation, what it is given, and what its failures cost."""

from __future__ import annotations

import pytest

from orchestrator.kernel.fact import OperationAttempt
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.providers.scripted import ScriptedLLM, call
from tests.runtime.stage import Facts, Notebook, agent

KNOWN = (
    Message("system", "The user is called Ada."),
    Message("user", "earlier"),
    Message("assistant", "said"),
)


def broken() -> str:
    raise ValueError("no disk")


async def test_memory_stands_after_the_instructions_and_before_the_conversation() -> None:
    llm = ScriptedLLM(["Hello Ada."])
    runner = agent(llm, memory=Notebook(*KNOWN), instructions="Be brief.")
    await runner.run("hello")
    assert [m.text for m in llm.requests[0].messages] == [
        "Be brief.",
        "The user is called Ada.",
        "earlier",
        "said",
        "hello",
    ]


async def test_memory_is_asked_with_the_conversation_and_under_its_id() -> None:
    memory = Notebook()
    runner = agent(["one", "two"], memory=memory)
    result = await runner.run("first")
    await runner.run("second", conversation_id="c")
    assert [key for key, _ in memory.asked] == [result.run_id, "c"]
    assert [m.text for m in memory.asked[1][1]] == ["second"]


async def test_memory_is_no_part_of_the_conversation_so_it_is_put_in_once_a_run() -> None:
    llm = ScriptedLLM(["one", "two"])
    runner = agent(llm, memory=Notebook(*KNOWN))
    await runner.run("first", conversation_id="c")
    result = await runner.run("second", conversation_id="c")
    assert [m.text for m in llm.requests[1].messages] == [
        "The user is called Ada.",
        "earlier",
        "said",
        "first",
        "one",
        "second",
    ]
    assert [m.text for m in result.messages] == ["first", "one", "second", "two"]


async def test_the_last_exchange_is_stored_before_the_run_ends() -> None:
    memory = Notebook()
    result = await agent([call("nothing"), "done"], memory=memory).run("go", conversation_id="c")
    assert memory.stored == [("c", (Message("user", "go"), result.messages[-1]))]
    assert not memory.episodes


async def test_feedback_is_not_what_the_user_asked() -> None:
    memory = Notebook()
    await agent(['{"error": "x"}', "done"], memory=memory).run("go")
    assert [m.text for m in memory.stored[0][1]] == ["go", "done"]


@pytest.mark.parametrize("how", ["broken", "slow"])
async def test_a_store_that_fails_or_never_returns_leaves_the_output(how: str) -> None:
    facts = Facts()
    memory = Notebook(broken={"store"}) if how == "broken" else Notebook(slow={"store"})
    runner = agent(["done"], memory=memory, observers=[facts], limits=Limits(memory_seconds=0.01))
    result = await runner.run("go")
    assert (result.outcome, result.reason, result.output) == (Outcome.COMPLETED, "memory_degraded", "done")
    assert result.error is None
    assert [fact.operation for fact in facts.of(OperationAttempt)] == ["memory"]


@pytest.mark.parametrize("how", ["broken", "slow"])
async def test_a_memory_that_cannot_prepare_fails_the_run(how: str) -> None:
    memory = Notebook(broken={"prepare"}) if how == "broken" else Notebook(slow={"prepare"})
    result = await agent([], memory=memory, limits=Limits(memory_seconds=0.01)).run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "memory_error")
    assert isinstance(result.error, OSError | TimeoutError)
    assert [m.text for m in result.messages] == ["go"]


async def test_a_failure_is_kept_as_an_episode_with_the_last_calls() -> None:
    memory = Notebook()
    script = [*(call("broken", n=number) for number in range(6)), ValueError("x" * 5_000)]
    await agent(script, memory=memory, limits=OFF).run("go")
    ((_, episode),) = memory.episodes
    assert (episode.reason, episode.iteration) == ("llm_error", 6)
    assert len(episode.error) == 2048
    assert episode.calls == tuple(("broken", f'{{"n": {number}}}') for number in (2, 3, 4, 5))


async def test_running_out_is_kept_as_an_episode_that_says_which_budget() -> None:
    memory = Notebook()
    limits = Limits(max_iterations=1)
    await agent([call("broken")], [broken], memory=memory, limits=limits).run("go")
    ((_, episode),) = memory.episodes
    assert (episode.reason, episode.error) == ("iterations", "iterations: 1 of 1 used")
    assert episode.calls == (("broken", "{}"),)
    assert not memory.stored


@pytest.mark.parametrize("how", ["broken", "slow"])
async def test_an_episode_that_cannot_be_kept_does_not_hide_the_failure(how: str) -> None:
    error = ValueError("the model")
    what = {"store_failure"}
    memory = Notebook(broken=what) if how == "broken" else Notebook(slow=what)
    result = await agent([error], memory=memory, limits=Limits(memory_seconds=0.01)).run("go")
    assert (result.outcome, result.reason, result.error) == (Outcome.FAILED, "llm_error", error)


async def test_a_conversation_without_a_user_is_stored_by_its_answer() -> None:
    memory = Notebook()
    result = await agent(["hi"], memory=memory).run(Message("system", "Greet."))
    assert memory.stored[0][1] == (result.messages[-1],)

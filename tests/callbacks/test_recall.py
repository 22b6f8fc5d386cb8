"""The memory port, seen from the hooks: places, keys, deadlines, failures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.kernel.fact import OperationAttempt
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.providers.scripted import call
from orchestrator_callbacks.llm_loop import memory as recall
from orchestrator_guards import Verdict
from tests.callbacks.stand import USER, answered, facts, loop_run
from tests.runtime.stage import Notebook

KNOWN = (Message("system", "known"), Message("user", "earlier"))
QUICK = replace(OFF, memory_seconds=0.01)


async def test_what_memory_knows_is_part_of_the_beginning() -> None:
    run = loop_run(memory=Notebook(*KNOWN))
    await recall.prepare(run)
    assert run.ctx.messages == [*KNOWN, USER]
    assert (run.ctx.base, run.ctx.recalled) == (3, (0, 2))
    assert recall.conversation(run.ctx) == [USER]


async def test_it_stands_behind_leading_system_messages() -> None:
    run = loop_run(memory=Notebook(*KNOWN))
    lead = Message("system", "lead")
    run.ctx.messages.insert(0, lead)
    await recall.prepare(run)
    assert run.ctx.messages == [lead, *KNOWN, USER]
    assert recall.conversation(run.ctx) == [lead, USER]


async def test_a_conversation_of_system_messages_alone_is_followed_by_it() -> None:
    run = loop_run(memory=Notebook(*KNOWN))
    run.ctx.messages = [Message("system", "lead")]
    await recall.prepare(run)
    assert run.ctx.messages[1:] == [*KNOWN]


async def test_without_a_memory_nothing_is_asked_or_kept() -> None:
    run = answered(loop_run(), text="done")
    await recall.prepare(run)
    await recall.store(run)
    await recall.store_failure(run)
    assert await recall.keep_summary(run, KNOWN[0])
    assert (run.ctx.messages, run.ctx.degraded) == ([USER, Message("assistant", "done")], False)


@pytest.mark.parametrize("what", ["broken", "slow"])
async def test_what_cannot_be_prepared_is_an_error_with_its_own_reason(what: str) -> None:
    memory = Notebook(broken=["prepare"]) if what == "broken" else Notebook(slow=["prepare"])
    run = loop_run(memory=memory, limits=QUICK)
    with pytest.raises((OSError, TimeoutError)):
        await recall.prepare(run)
    assert run.ctx.fault == "memory_error"
    assert run.ctx.messages == [USER]


@pytest.mark.parametrize("what", ["broken", "slow"])
async def test_what_cannot_be_stored_degrades_the_run(what: str) -> None:
    memory = Notebook(broken=["store"]) if what == "broken" else Notebook(slow=["store"])
    run = answered(loop_run(memory=memory, limits=QUICK), text="done")
    await recall.store(run)
    assert run.ctx.degraded
    assert [(fact.operation, fact.outcome) for fact in facts(run, OperationAttempt)] == [
        ("memory", "exhausted")
    ]


async def test_zero_seconds_are_no_deadline_for_the_last_exchange() -> None:
    memory = Notebook()
    run = answered(loop_run(memory=memory, limits=replace(OFF, memory_seconds=0.0)), text="done")
    run.ctx.messages.insert(0, KNOWN[1])
    run.ctx.base = 2
    await recall.store(run)
    assert memory.stored == [("r", (USER, Message("assistant", "done")))]


def test_memory_files_a_run_under_its_conversation_else_under_itself() -> None:
    assert recall.key(loop_run()) == "r"
    assert recall.key(loop_run(conversation_id="c")) == "c"


@pytest.mark.parametrize(
    ("error", "verdict", "fault", "reason", "text"),
    [
        (ValueError("x"), None, None, "failure", "x"),
        (ValueError("x"), None, "llm_error", "llm_error", "x"),
        (None, Verdict(ok=False, guard="cost", observed=2, limit=1), None, "cost", "cost: 2 of 1 used"),
        (None, None, None, "failure", ""),
    ],
)
async def test_an_episode_says_why(
    error: Exception | None, verdict: Verdict | None, fault: str | None, reason: str, text: str
) -> None:
    memory = Notebook()
    run = answered(loop_run(memory=memory), call("look", at="x"))
    run.cursor.error, run.ctx.verdict, run.ctx.fault = error, verdict, fault
    await recall.store_failure(run)
    ((_, episode),) = memory.episodes
    assert (episode.run_id, episode.reason, episode.error, episode.iteration) == ("r", reason, text, 1)
    assert episode.calls == (("look", '{"at": "x"}'),)

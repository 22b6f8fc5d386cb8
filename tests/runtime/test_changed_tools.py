"""A tool that changed between the announcement of a call and its resumption: a person decides about the call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator import Agent, MemoryJournal
from orchestrator.errors import StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.kernel.journal import Journal
from orchestrator.machines.question import Question
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.tools.spec import ToolSpec, tool
from tests.runtime.stage import NO_WAIT, until

ASKED = (
    "the tool has another schema, effect or approval than when this call was announced, so a person is asked"
)


class Bank:
    """Agents with versions of one tool, and the payments that were made."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.undone: list[str] = []

    def pay(self, by: str, **options: Any) -> ToolSpec:
        if options.pop("wide", False):

            @tool(name="pay", **{"effect": "pure", **options})
            def pay(amount: int, note: str = "") -> str:
                self.paid.append(by)
                return "paid"

            return pay
        if options.get("effect") == "compensable":
            options["undo"] = lambda amount: self.undone.append(by)

        @tool(name="pay", **{"effect": "pure", **options})
        def paying(amount: int) -> str:
            self.paid.append(by)
            return "paid"

        return paying

    def agent(self, journal: Journal, *tools: ToolSpec, **options: Any) -> Agent:
        def answer(request: Any) -> Any:
            return "done" if request.messages[-1].role == "tool" else call("pay", amount=1)

        return Agent(
            FunctionLLM(answer),
            tools=tools,
            journal=journal,
            observers=(),
            retry=NO_WAIT,
            name="sales",
            **options,
        )

    async def announced(self, **options: Any) -> MemoryJournal:
        """Return a journal with a run whose process died after it had announced its call."""
        inner = MemoryJournal()
        one = self.agent(CrashingJournal(inner, at=2, when="after"), self.pay("old", **options), version="1")
        assert isinstance((await one.run("go", run_id="r")).error, StoreDown)
        assert "intent" in [record.kind for record in await inner.load("r")]
        inner.bury((await inner.head("r")).owner or "")
        self.paid.clear()
        return inner


async def question(agent: Agent) -> Question:
    found: Question = await until(lambda: agent._service.live.find("r") and _first(agent))
    return found


async def _first(agent: Agent) -> Question | None:
    return next(iter(await agent.pending("r")), None)


@pytest.mark.parametrize(
    "now",
    [{"wide": True}, {"effect": "idempotent"}, {"effect": "irreversible"}, {"approval": True}],
    ids=lambda now: next(iter(now)),
)
async def test_a_call_that_needed_no_approval_goes_to_a_person_if_its_tool_changed(
    now: dict[str, Any],
) -> None:
    bank = Bank()
    journal = await bank.announced()
    newer = bank.agent(journal, bank.pay("new", **now), version="2")
    (listed,) = await newer.hosting.open_runs()
    assert "asks a person about pay: the tool has changed since the call was announced" in listed.will
    task = asyncio.create_task(newer.resume("r"))
    asked = await question(newer)
    assert (asked.why, asked.tool, bank.paid) == ("approval", "pay", [])
    assert asked.notice == ASKED
    await newer.approve("r", digest=asked.digest, by="ann")
    assert (await task).output == "done"
    assert bank.paid == ["new"]


async def test_a_rejected_call_of_a_changed_tool_does_not_run() -> None:
    bank = Bank()
    journal = await bank.announced()
    newer = bank.agent(journal, bank.pay("new", wide=True), version="2")
    task = asyncio.create_task(newer.resume("r"))
    await newer.reject("r", digest=(await question(newer)).digest, by="ann")
    await task
    assert bank.paid == []


async def test_the_tool_is_still_another_one_after_a_second_crash_before_the_question() -> None:
    """The second process has recorded its own tools by then, and the call is still that of the first one."""
    bank = Bank()
    journal = await bank.announced()
    dying = bank.agent(CrashingJournal(journal, at=2), bank.pay("new", wide=True), version="2")
    assert isinstance((await dying.resume("r")).error, StoreDown)
    kinds = [record.kind for record in await journal.load("r")]
    assert (kinds[-1], "asked" in kinds) == ("resumed", False)
    journal.bury((await journal.head("r")).owner or "")
    newer = bank.agent(journal, bank.pay("new", wide=True), version="2")
    task = asyncio.create_task(newer.resume("r"))
    asked = await question(newer)
    await newer.approve("r", digest=asked.digest)
    await task
    assert bank.paid == ["new"]


async def test_a_changed_tool_does_not_undo_the_call_of_the_earlier_one() -> None:
    bank = Bank()
    journal = await bank.announced(effect="compensable")
    newer = bank.agent(journal, bank.pay("new", wide=True), version="2")
    task = asyncio.create_task(newer.resume("r"))
    asked = await question(newer)
    assert (asked.why, bank.undone) == ("unknown_effect", [])
    await newer.respond("r", "it was paid", digest=asked.digest)
    await task
    assert (bank.paid, bank.undone) == ([], [])


@pytest.mark.parametrize(
    "now",
    [{"wide": True}, {"effect": "pure"}, {"approval": lambda arguments: True}],
    ids=lambda now: next(iter(now)),
)
async def test_an_approved_call_is_asked_about_again_if_its_tool_changed(now: dict[str, Any]) -> None:
    bank, inner = Bank(), MemoryJournal()
    old = bank.agent(inner, bank.pay("old", approval=True, effect="idempotent"), version="1")
    running = asyncio.create_task(old.run("go", run_id="r"))
    asked = await question(old)
    running.cancel()
    await asyncio.wait((running,))
    await old.approve("r", digest=asked.digest, by="ann")  # then the new version is deployed
    newer = bank.agent(
        inner, bank.pay("new", **{"approval": True, "effect": "idempotent", **now}), version="2"
    )
    task = asyncio.create_task(newer.resume("r"))

    async def other() -> Question | None:
        return next((one for one in await newer.pending("r") if one.digest != asked.digest), None)

    renewed: Question = await until(lambda: newer._service.live.find("r") and other())
    assert bank.paid == []
    await newer.approve("r", digest=renewed.digest, by="ann")
    await task
    assert bank.paid == ["new"]


async def test_an_unchanged_tool_runs_again_without_a_question_in_another_version_of_the_agent() -> None:
    bank = Bank()
    journal = await bank.announced()

    @tool(effect="pure")
    def search(query: str) -> str:
        return query

    newer = bank.agent(journal, bank.pay("new"), search, version="2")
    assert (await newer.resume("r")).output == "done"
    assert bank.paid == ["new"]

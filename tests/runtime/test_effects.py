"""The twelve cases: a crash before an effect, after it, and after its record, for each of the four effects of tools.

A call that was finished is never run again. One that may have begun is run again, run again with the same key, taken
back first, or a person is asked; and whoever asks `open_runs` before is told which.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import RunParked
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.tools.spec import ToolContext, ToolSpec, tool
from tests.runtime.stage import NO_WAIT, Facts

BEFORE, AFTER, RECORDED = "before the effect", "after it, before its record", "after its record"


class Death(BaseException):
    """What ends a process: nobody catches it, and nothing of it is written any more."""


class Mortal:
    """A journal that a dead process cannot reach."""

    def __init__(self, inner: MemoryJournal) -> None:
        self.inner = inner
        self.dies_after: Callable[[Sequence[Any]], bool] = lambda _: False
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise Death
        return getattr(self.inner, name)

    def append(self, lease: Any, drafts: Sequence[Any], blobs: Any = None) -> None:
        if self.dead:
            raise Death
        self.inner.append(lease, drafts, blobs)
        if self.dies_after(drafts):
            self.die()

    def die(self) -> None:
        self.dead = True
        raise Death


class Service:
    """Where effects happen. It knows calls by their key, and tells how often it was reached."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.there: set[str] = set()
        self.undone: list[bool] = []
        """For each undo, whether there was something to take back."""
        self.crash: tuple[str, Callable[[], None]] = ("", lambda: None)

    def strike(self, when: str) -> None:
        if self.crash[0] == when:
            self.crash[1]()

    def act(self, key: str, *, knows_keys: bool) -> None:
        self.strike(BEFORE)
        if not (knows_keys and key in self.there):
            self.effects[key] += 1
            self.there.add(key)
        self.strike(AFTER)

    def take_back(self, key: str) -> None:
        self.undone.append(key in self.there)
        if key in self.there:
            self.there.remove(key)
            self.effects[key] -= 1

    def tool(self, effect: Any) -> ToolSpec:
        async def undo(context: ToolContext) -> str:
            self.take_back(context.idempotency_key)
            return "taken back"

        @tool(effect=effect, undo=undo if effect == "compensable" else None)
        async def act(context: ToolContext) -> str:
            self.reached = getattr(self, "reached", 0) + 1
            self.act(context.idempotency_key, knows_keys=effect == "idempotent")
            return "done"

        return act


def model(request: Request) -> Response:
    if request.messages[-1].role == "tool":
        return Response("that is all")
    return Response(None, (ToolCall("a", "act", "{}"),))


def agent(service: Service, effect: str, journal: Any, *observers: Any) -> Agent:
    return Agent(
        FunctionLLM(model), tools=[service.tool(effect)], journal=journal, observers=observers, retry=NO_WAIT
    )


async def killed(service: Service, effect: str, inner: MemoryJournal, when: str) -> None:
    """Run until the process dies, and tell the store that it did."""
    journal = Mortal(inner)
    if when == RECORDED:
        journal.dies_after = lambda drafts: any(draft.kind == "done" for draft in drafts)
    service.crash = (when, journal.die)
    doomed = agent(service, effect, journal)
    with pytest.raises(Death):
        await doomed.run("go", run_id="r")
    service.crash = ("", lambda: None)
    inner.bury((await inner.head("r")).owner or "")


async def resumed(one: Agent, facts: Facts, say: Callable[[], Any]) -> Result:
    """Resume; when a person is asked, `say` it."""
    going = asyncio.create_task(one.resume("r"))
    while not going.done():
        await asyncio.sleep(0)
        if facts.of(RunParked) and await one.pending("r"):
            await say()
    return await going


GOES_ON = "continues in update_budgets"
CASES = {
    ("pure", BEFORE): (1, 0, "runs act again (pure)"),
    ("pure", AFTER): (2, 0, "runs act again (pure)"),
    ("idempotent", BEFORE): (1, 0, "runs act again with the same key (idempotent)"),
    ("idempotent", AFTER): (1, 0, "runs act again with the same key (idempotent)"),
    ("compensable", BEFORE): (1, 1, "takes act back and runs it again (compensable)"),
    ("compensable", AFTER): (1, 1, "takes act back and runs it again (compensable)"),
    ("irreversible", BEFORE): (1, 0, "asks a person about act: it may have happened (irreversible)"),
    ("irreversible", AFTER): (1, 0, "asks a person about act: it may have happened (irreversible)"),
    **{(effect, RECORDED): (1, 0, "") for effect in ("pure", "idempotent", "compensable", "irreversible")},
}
"""(effect, crash) -> how often it is there in the end, how often it was taken back, what `open_runs` says before."""


@pytest.mark.parametrize(("effect", "when"), CASES, ids=[f"{effect}: {when}" for effect, when in CASES])
async def test_a_crash(effect: str, when: str) -> None:
    effects, undone, will = CASES[effect, when]
    service, inner, facts = Service(), MemoryJournal(), Facts()
    await killed(service, effect, inner, when)
    before = len(await inner.load("r"))

    one = agent(service, effect, inner, facts)
    (plan,) = await one.hosting.open_runs()
    if when == RECORDED:
        assert (
            plan.will
            == "asks the model again; what the lost answer may have cost is charged; continues in await_llm"
        )
    else:
        charged = "charges a model request, which may have followed"
        assert plan.will.split("; ") == [will, charged, "continues in process_tools"]
    assert (plan.status, plan.owner) == ("open", None)
    assert len(await inner.load("r")) == before, "to look changes nothing"

    async def say() -> None:
        (question,) = await one.pending("r")
        assert (question.why, question.key, question.tool) == ("unknown_effect", "1:0", "act")
        if service.there:
            await one.respond("r", "done", by="ann", why="it is in the books")
        else:
            await one.approve("r", by="ann", why="it is not in the books")

    result = await resumed(one, facts, say)

    assert result.outcome is Outcome.COMPLETED
    assert [message.text for message in result.messages] == ["go", "", "done", "that is all"]
    assert service.effects == Counter({"r:1:0": effects})
    assert len(service.undone) == undone
    assert all(found == (when == AFTER) for found in service.undone)
    assert [fact.reason for fact in facts.of(RunParked)] == (
        ["unknown_effect"] if effect == "irreversible" and when != RECORDED else []
    )
    await assert_records(inner, effect, when)


async def assert_records(inner: MemoryJournal, effect: str, when: str) -> None:
    """What became of the call is told by records, in order."""
    told = [
        record
        for record in await inner.load("r")
        if record.body.get("effect") == "tool" or record.kind == "approval"
    ]
    kinds = [record.kind for record in told]
    if when == RECORDED or effect in {"pure", "idempotent"}:
        assert kinds == ["intent", "done"]
    elif effect == "compensable":
        assert kinds == ["intent", "rolled_back", "intent", "done"]
    elif when == AFTER:
        assert kinds == ["intent", "approval", "done"]
    else:
        assert kinds == ["intent", "approval", "intent", "done"]


async def test_an_undo_that_fails_leaves_it_to_a_person() -> None:
    service, inner, facts = Service(), MemoryJournal(), Facts()
    await killed(service, "compensable", inner, AFTER)

    def broken(key: str) -> None:
        raise OSError("the service is down")

    service.take_back = broken  # type: ignore[method-assign]
    one = agent(service, "compensable", inner, facts)

    async def say() -> None:
        assert [question.why for question in await one.pending("r")] == ["undo_failed"]
        await one.respond("r", "done", by="ann")

    result = await resumed(one, facts, say)
    assert result.outcome is Outcome.COMPLETED
    assert service.effects == Counter({"r:1:0": 1})


async def test_a_crash_in_the_undo_takes_back_only_what_is_there() -> None:
    service, inner, facts = Service(), MemoryJournal(), Facts()
    await killed(service, "compensable", inner, AFTER)
    journal = Mortal(inner)
    take_back = service.take_back

    def and_die(key: str) -> None:
        take_back(key)
        journal.die()

    service.take_back = and_die  # type: ignore[method-assign]
    with pytest.raises(Death):
        await agent(service, "compensable", journal).resume("r")
    inner.bury((await inner.head("r")).owner or "")
    service.take_back = take_back  # type: ignore[method-assign]

    one = agent(service, "compensable", inner, facts)
    assert "takes act back" in (await one.hosting.open_runs())[0].will
    result = await one.resume("r")
    assert result.outcome is Outcome.COMPLETED
    assert service.effects == Counter({"r:1:0": 1})
    assert service.undone == [True, False]


async def test_an_answer_to_one_question_does_not_count_for_the_next_about_the_same_call() -> None:
    """Two people approve; the first counts, the process dies in the effect, and the second must not be a new yes."""
    service, inner, facts = Service(), MemoryJournal(), Facts()
    await killed(service, "irreversible", inner, BEFORE)
    one = agent(service, "irreversible", inner, facts)
    (asked,) = await one.hosting.open_runs()
    assert asked.will.startswith("asks a person")

    journal = Mortal(inner)
    service.crash = (AFTER, journal.die)
    doomed = agent(service, "irreversible", journal, facts)
    going = asyncio.create_task(doomed.resume("r"))
    while not facts.of(RunParked):  # noqa: ASYNC110  it is not long
        await asyncio.sleep(0)
    (first,) = await doomed.pending("r")
    doomed.approve("r", digest=first.digest, by="ann")
    await asyncio.wait((going,))
    assert isinstance(going.exception(), Death)
    service.crash = ("", lambda: None)
    inner.bury((await inner.head("r")).owner or "")
    assert service.effects == Counter({"r:1:0": 1})

    facts.all.clear()
    going = asyncio.create_task(one.resume("r"))
    while not facts.of(RunParked):  # noqa: ASYNC110  it is not long
        await asyncio.sleep(0)
    (second,) = await one.pending("r")
    assert second.digest != first.digest
    await one.respond("r", "done", digest=second.digest, by="bob")
    assert (await going).outcome is Outcome.COMPLETED
    assert service.effects == Counter({"r:1:0": 1})

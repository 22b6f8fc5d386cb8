"""The members of the records that each machine writes: a later version may add members, and renames or removes none.

Readers of a journal use these names: a resume by any later version, the console, reports, backtests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Response, ToolCall
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import Verdict
from tests.observability import MACHINES
from tests.runtime.stage import until
from tests.runtime.test_people import waiting

Members = dict[str, set[str]]
"""Kind of record -> names of the members, those of inner objects after a dot."""

START = "at fingerprint graph parent_run_id schema context"
END = "at outcome reason t"
STEP = "at dest event seq source t"
PER_MACHINE: dict[str, dict[str, str]] = {
    "llm_loop": {
        "created": f"{START} conversation_id",
        "transition": STEP,
        "answer": "finish_reason iteration model usage",
        "intent": "calls effect turn calls.key calls.position calls.tool calls.effect",
        "done": "content effect key outcome seconds tool",
        "ended": END,
    },
    "team": {
        "created": f"{START} conversation_id",
        "transition": STEP,
        "context": "agent handoffs handoffs.agent handoffs.to handoffs.run_id handoffs.input handoffs.digest",
        "ended": END,
    },
    "call": {
        "created": START,
        "intent": "calls effect turn calls.key calls.position calls.tool calls.effect",
        "done": "content effect key outcome seconds tool",
        "transition": STEP,
        "ended": END,
    },
    "pipeline": {"created": START, "transition": f"{STEP} reason", "ended": END},
    "approval": {
        "created": START,
        "transition": STEP,
        "parked": "at reason t",
        "step": "at status step",
        "intent": "after before change effect folders key mode owner path step",
        "done": "after effect folders key step",
    },
    "ralph": {"created": START, "transition": STEP, "ended": END},
    "code_mode": {
        "created": f"{START} conversation_id material",
        "reserved": "sub_calls usage",
        "transition": STEP,
        "ended": END,
    },
    "tools_mode": {
        "created": f"{START} material",
        "reserved": "sub_calls usage",
        "transition": STEP,
        "ended": END,
    },
}
PEOPLE = {
    "asked": "key tool digest version why verdict expires_at verdict.guard verdict.observed verdict.limit",
    "approval": "key digest decision by why at id number arguments",
    "control": "id kind by number key at refused",
    "intent": "calls.arguments calls.digest calls.registered calls.timeout calls.total_timeout",
    "done": "cut call",
    "memory": "stored",
    "parked": "at reason t",
}


def members(value: object, before: str = "") -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type):  # the store encodes it as its fields
        value = asdict(value)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{before}{name}"
            yield from members(inner, f"{before}{name}.")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from members(inner, before)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Members:
    """The members of the records that are written from now on."""
    found: Members = defaultdict(set)

    def watch(journal: Any) -> None:
        create, append = journal.create, journal.append

        async def created(self: Any, run_id: str, owner: str, body: Mapping[str, Any]) -> Any:
            found["created"].update(members(body))
            return await create(self, run_id, owner, body)

        def appended(self: Any, lease: Any, drafts: Any, blobs: Any = None) -> Any:
            for draft in drafts:
                found[draft.kind].update(members(draft.body))
            return append(self, lease, drafts, blobs)

        monkeypatch.setattr(journal, "create", created)
        monkeypatch.setattr(journal, "append", appended)

    watch(MemoryJournal)
    watch(SqliteJournal)
    return found


def missing(written: Members, promised: Mapping[str, str]) -> dict[str, set[str]]:
    lost = {kind: set(names.split()) - written[kind] for kind, names in promised.items()}
    return {kind: names for kind, names in lost.items() if names}


@pytest.mark.parametrize("name", MACHINES)
async def test_the_records_of_each_machine_keep_their_members(
    name: str, tmp_path: Path, written: Members
) -> None:
    await MACHINES[name]((), tmp_path)
    assert missing(written, PER_MACHINE[name]) == {}


class Notebook:
    async def prepare(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        return ()

    async def store(self, key: str, messages: Sequence[Message]) -> None: ...

    async def compact(self, key: str, summary: Message) -> None: ...

    async def store_failure(self, key: str, episode: object) -> None: ...


async def test_the_records_about_people_tools_and_memory_keep_their_members(written: Members) -> None:
    @tool(
        approval=lambda _: Verdict(False, "amount", 5, 1), max_result_chars=100, timeout=60, total_timeout=600
    )
    def pay(amount: int) -> str:
        return "x" * 1000

    @tool(effect="pure")
    def look(at: str) -> str:
        return at

    class Elsewhere:
        async def before_tool_execution(self, run: LoopRun, asked: ToolCall) -> ToolCall | None:
            return ToolCall(asked.id, "look", '{"at":"there"}') if asked.name == "look" else None

    calls = (
        ToolCall("a", "pay", '{"amount": 5}'),
        call("pay", amount=6),
        call("look", at="here"),
        call("lok", at="here"),
    )
    agent = Agent(
        ScriptedLLM([Response(None, calls), "done"]),
        tools=[pay, look],
        hooks=[Elsewhere()],
        journal=MemoryJournal(),
        memory=Notebook(),
        limits=Limits(approval_seconds=3600.0),
        observers=(),
    )
    async with waiting(agent) as (task, question):
        live = agent._service.live.find("r")
        assert live is not None
        late = Signal(
            kind="decision", by="ben", payload={"call": "1:1", "decision": "approve", "digest": "f" * 64}
        )
        live.mailbox.post(late)
        await until(lambda: "refused" in written["control"])
        await agent.approve("r", question.key, arguments='{"amount":7}', by="ann", why="small")
        await agent.reject("r", "1:1", by="ann")
        assert (await task).outcome is Outcome.COMPLETED
    assert missing(written, PEOPLE) == {}

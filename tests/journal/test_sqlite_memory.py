"""The memory in a SQLite file: what is shown of what was kept, in runs too."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from orchestrator.journal.sqlite.conversation import MemoryDown, SqliteMemory
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, ToolCall
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import ScriptedLLM, call
from tests.journal.memory_stage import exchange, failure, texts
from tests.runtime.stage import agent

# ---- what is shown ----


async def test_what_was_said_is_there_in_order_and_under_its_key_alone(memory: SqliteMemory) -> None:
    for number in range(3):
        await memory.store("ada", exchange(number))
    await memory.store("bob", exchange("of bob"))
    assert await memory.prepare("ada", ()) == [one for number in range(3) for one in exchange(number)]
    assert await memory.prepare("bob", ()) == exchange("of bob")
    assert await memory.prepare("eve", ()) == []


async def test_it_is_there_for_whoever_opens_the_file_next(path: Path) -> None:
    async with SqliteMemory(path) as first:
        await first.store("ada", exchange(1))
    async with SqliteMemory(path) as second:
        assert await second.prepare("ada", ()) == exchange(1)


async def test_content_of_every_kind_comes_back_as_it_was(memory: SqliteMemory) -> None:
    said = [
        Message(
            "user",
            [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "x"}}],
        ),
        Message("assistant", "a cät 🐈", reasoning="hm", name="ann"),
    ]
    await memory.store("ada", said)
    assert await memory.prepare("ada", ()) == said


async def test_calls_are_not_kept_for_their_results_are_not_either(memory: SqliteMemory) -> None:
    said = [
        Message("user", "go"),
        Message("tool", "result", tool_call_id="1", name="look"),
        Message("assistant", "done", (ToolCall("2", "look"),)),
    ]
    await memory.store("ada", said)
    assert await memory.prepare("ada", ()) == [Message("user", "go"), Message("assistant", "done")]


async def test_what_only_a_server_reads_is_not_kept(memory: SqliteMemory) -> None:
    text = {"type": "text", "text": "done"}
    signed = {
        "type": "openai_chat",
        "server": "h",
        "message": {"reasoning_details": ["x" * 50_000]},
        "calls": [],
    }
    await memory.store("ada", [Message("user", "go"), Message("assistant", [signed, text])])
    assert await memory.prepare("ada", ()) == [Message("user", "go"), Message("assistant", [text])]


async def test_text_that_no_file_can_hold_is_kept_as_far_as_it_can_be(memory: SqliteMemory) -> None:
    await memory.store("ada", [Message("user", "broken \ud83d here")])
    assert texts(await memory.prepare("ada", ())) == ["broken ? here"]


@pytest.mark.parametrize(("most", "shown"), [(0, 5), (1, 0), (2, 1), (3, 1), (4, 2), (10, 5), (99, 5)])
async def test_a_limit_of_n_messages_shows_whole_exchanges_of_at_most_n(
    path: Path, most: int, shown: int
) -> None:
    async with SqliteMemory(path, max_messages=most) as memory:
        for number in range(5):
            await memory.store("ada", exchange(number))
        assert await memory.prepare("ada", ()) == [
            one for number in range(5 - shown, 5) for one in exchange(number)
        ]


async def test_a_limit_of_characters_stops_at_the_first_exchange_that_is_too_long(path: Path) -> None:
    async with SqliteMemory(path, max_chars=400) as memory:
        await memory.store("ada", exchange("old"))
        await memory.store("ada", [Message("user", "x" * 500), Message("assistant", "long")])
        await memory.store("ada", exchange("new"))
        assert await memory.prepare("ada", ()) == exchange("new"), "none that came before the gap"


async def test_what_stands_in_the_conversation_anyway_is_not_shown_again(memory: SqliteMemory) -> None:
    await memory.store("ada", exchange(1))
    await memory.store("ada", exchange(2))
    conversation = [*exchange(2), Message("user", "question 3")]
    assert await memory.prepare("ada", conversation) == exchange(1)


async def test_the_last_exchange_stored_again_is_no_other(memory: SqliteMemory) -> None:
    for number in (1, 2, 2, 1):
        await memory.store("ada", exchange(number))
    assert await memory.prepare("ada", ()) == [*exchange(1), *exchange(2), *exchange(1)]


# ---- failures and summaries ----


async def test_failures_since_the_last_exchange_are_told_the_newest_first_and_give_no_orders(
    memory: SqliteMemory,
) -> None:
    await memory.store("ada", exchange(1))
    await memory.store_failure("ada", failure(1, "no\ndisk", ("look", '{"n": 1}')))
    await memory.store_failure("ada", failure(2))
    *said, told = await memory.prepare("ada", ())
    assert said == exchange(1)
    assert told.role == "user"
    assert told.text.splitlines()[1:] == [
        "- llm_error: boom 2.",
        '- llm_error: no disk 1. Last calls: look({"n": 1}).',
    ]
    await memory.store("ada", exchange(2))
    assert await memory.prepare("ada", ()) == [*exchange(1), *exchange(2)], "it went well since"


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_only_the_newest_failures_are_kept(path: Path, most: int) -> None:
    async with SqliteMemory(path, max_failures=most) as memory:
        for number in range(5):
            await memory.store_failure("ada", failure(number))
        shown = await memory.prepare("ada", ())
        told = [line for message in shown for line in message.text.splitlines()[1:]]
        assert told == [f"- llm_error: boom {number}." for number in range(4, 4 - most, -1)]
    rows = apsw.Connection(str(path)).execute("SELECT count(*) FROM entry").get
    assert rows == most


async def test_a_long_failure_is_shown_in_short(memory: SqliteMemory) -> None:
    await memory.store_failure("ada", failure(1, "x" * 2_048, ("look", "y" * 2_048)))
    (told,) = await memory.prepare("ada", ())
    assert len(told.text) < 900


async def test_a_summary_replaces_those_of_the_same_run_and_no_exchange(memory: SqliteMemory) -> None:
    await memory.store("ada", exchange(1))
    for number in (1, 2):
        await memory.compact("ada", Message("system", f"summary {number}"))
    await memory.store("ada", exchange(2))
    await memory.compact("ada", Message("system", "summary 3"))
    shown = await memory.prepare("ada", ())
    assert texts(shown) == ["question 1", "answer 1", "summary 2", "question 2", "answer 2", "summary 3"]


# ---- forgetting ----


async def test_what_is_erased_is_gone_from_the_file_and_its_log(memory: SqliteMemory, path: Path) -> None:
    await memory.store("ada", [Message("user", "the secret of ada")])
    await memory.store("bob", exchange(1))
    assert b"secret of ada" in b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert await memory.erase("ada") is True
    assert b"secret of ada" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert await memory.erase("ada") is False
    assert await memory.prepare("ada", ()) == []
    assert await memory.prepare("bob", ()) == exchange(1)


async def test_keys_that_nobody_used_since_are_pruned(path: Path) -> None:
    now = 100.0
    async with SqliteMemory(path, now=lambda: now) as memory:
        for key in ("old", "both"):
            await memory.store(key, exchange(1))
        now = 200.0
        for key in ("both", "new"):
            await memory.store(key, exchange(2))
        assert await memory.prune(older_than=200.0) == 1
        assert await memory.prepare("old", ()) == []
        assert texts(await memory.prepare("both", ())) == ["question 1", "answer 1", "question 2", "answer 2"]


# ---- in runs ----


async def test_a_conversation_goes_on_in_another_process_with_what_was_said(path: Path) -> None:
    async with SqliteMemory(path) as memory:
        await agent(["Hello Ada."], memory=memory).run("I am Ada.", conversation_id="c")
    async with SqliteMemory(path) as memory:
        llm = ScriptedLLM(["You are Ada."])
        result = await agent(llm, memory=memory).run("Who am I?", conversation_id="c")
        assert texts(llm.requests[0].messages) == ["I am Ada.", "Hello Ada.", "Who am I?"]
        assert (result.outcome, result.reason) == (Outcome.COMPLETED, "none")


async def test_in_one_process_nothing_is_said_twice(memory: SqliteMemory) -> None:
    llm = ScriptedLLM(["one", "two"])
    runner = agent(llm, memory=memory)
    await runner.run("first", conversation_id="c")
    await runner.run("second", conversation_id="c")
    assert texts(llm.requests[1].messages) == ["first", "one", "second"]


async def test_what_failed_is_told_to_the_next_run_of_the_conversation(path: Path) -> None:
    async with SqliteMemory(path) as memory:
        await agent([call("nothing"), ValueError("no luck")], memory=memory).run("go", conversation_id="c")
    async with SqliteMemory(path) as memory:
        llm = ScriptedLLM(["done"])
        await agent(llm, memory=memory).run("again", conversation_id="c")
        told, prompt = texts(llm.requests[0].messages)
        assert told.splitlines()[1] == "- llm_error: no luck. Last calls: nothing({})."
        assert prompt == "again"


async def test_a_memory_that_cannot_be_written_leaves_the_output_and_one_that_cannot_be_read_fails_the_run(
    path: Path,
) -> None:
    async with SqliteMemory(path, busy=0.01) as memory:
        other = apsw.Connection(str(path))

        async def lock() -> str:
            other.execute("BEGIN IMMEDIATE")
            return "locked"

        limits = Limits(max_repeated_success=0)
        result = await agent([call("lock"), "done"], [lock], memory=memory, limits=limits).run("go")
        assert (result.outcome, result.reason, result.output) == (
            Outcome.COMPLETED,
            "memory_degraded",
            "done",
        )
        result = await agent(["never"], memory=memory).run("go")
        assert (result.outcome, result.reason) == (Outcome.FAILED, "memory_error")
        assert isinstance(result.error, MemoryDown)
        other.execute("ROLLBACK")
        other.close()

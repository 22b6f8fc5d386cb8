"""Large results are stored once, outside of the messages, shown to the model cut, and read in parts by a handle."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Message, Request, ToolCall
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.tools.read_result import MOST, read_result
from orchestrator.tools.result import ToolResult, cut, mark_of
from orchestrator.tools.spec import tool
from tests.runtime.stage import agent

REPORT = "".join(f"line {number:,}{12 * ' of a long report'}\n" for number in range(50_000))
MEGABYTES = 10_000_000


@tool(effect="pure")
def report() -> str:
    """Return a long report."""
    return REPORT


def tools_said(messages: Any) -> list[str]:
    return [message.text for message in messages if message.role == "tool"]


async def done_records(journal: Journal, run_id: str) -> list[dict[str, Any]]:
    return [dict(record.body) for record in await journal.load(run_id) if record.kind == "done"]


async def test_a_result_of_ten_megabytes_is_stored_once_and_no_message_or_record_grows_with_it(
    tmp_path: Path,
) -> None:
    assert len(REPORT) > MEGABYTES
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        asked: list[int] = []

        def model(request: Request) -> Any:
            asked.append(sum(len(message.text) for message in request.messages))
            return call("report") if len(asked) <= 3 else "done"

        limits = Limits(max_repeated_success=0, max_no_progress=0)
        agent_ = agent(FunctionLLM(model), [report, read_result], journal=journal, limits=limits)
        result = await agent_.run("go", run_id="large")
        assert result.output == "done"
        assert max(asked) < 100_000
        bodies = [len(str(record.body)) for record in await journal.load("large")]
        assert max(bodies) < 100_000
        digests = {body["whole"] for body in await done_records(journal, "large")}
        assert digests == {hashlib.sha256(REPORT.encode()).hexdigest()}
        assert (await journal.blob(*digests)).decode() == REPORT
    stored = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert stored < 2 * len(REPORT), "three results of the same text are one blob"


async def test_the_mark_names_the_handle_and_reading_with_it_gives_the_rest() -> None:
    parts: list[str] = []

    def model(request: Request) -> Any:
        said = request.messages[-1].text
        if request.messages[-1].role == "user":
            return call("report")
        if not parts:
            mark = re.search(r'read_result\(handle="(\d+:\d+)", start=(\d+)\) reads on\]$', said)
            assert mark is not None
            parts.append(said[: int(mark[2])])
            return call("read_result", handle=mark[1], start=int(mark[2]))
        heading, _, part = said.partition("\n")
        begins, ends, length = map(int, re.findall(r"\d+", heading))
        assert (begins, length) == (sum(map(len, parts)), len(REPORT))
        assert ends == begins + len(part) - 1
        parts.append(part)
        handle = request.messages[-2].tool_calls[0].arguments
        return (
            call("read_result", handle=re.findall(r"\d+:\d+", handle)[0], start=ends + 1)
            if len(parts) < 5
            else "read"
        )

    result = await agent(FunctionLLM(model), [report, read_result]).run("go")
    assert result.output == "read"
    assert "".join(parts) == REPORT[: sum(map(len, parts))]
    assert [len(part) for part in parts[1:]] == [MOST] * 4
    assert not any("cut:" in said for said in tools_said(result.messages)[1:]), "a part is not cut again"


async def test_without_the_tool_nothing_is_stored_and_no_handle_is_named() -> None:
    journal = MemoryJournal()
    result = await agent([call("report"), "done"], [report], journal=journal).run("go", run_id="plain")
    [said] = tools_said(result.messages)
    assert said == cut(REPORT, 20_000)[0]
    assert "read_result" not in said
    [body] = await done_records(journal, "plain")
    assert (body["cut"], "whole" in body) == (True, False)


async def test_a_result_that_is_not_cut_is_not_stored() -> None:
    journal = MemoryJournal()

    @tool(effect="pure")
    def short() -> str:
        """Return little."""
        return "x" * 20_000

    await agent([call("short"), "done"], [short, read_result], journal=journal).run("go", run_id="short")
    [body] = await done_records(journal, "short")
    assert not {"cut", "whole"} & body.keys()


async def test_a_run_cannot_read_results_of_another_run() -> None:
    journal = MemoryJournal()
    await agent([call("report"), "done"], [report, read_result], journal=journal).run("go", run_id="first")
    script = [call("read_result", handle="1:0"), "done"]
    result = await agent(script, [read_result], journal=journal, name="b").run("go", run_id="second")
    assert tools_said(result.messages) == [
        '{"error":"there is no stored result \'1:0\' in this run; stored results: none","type":"NoSuchResult"}'
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"start": -1}, "start is -1; the result has the characters 0 to "),
        (
            {"start": len(REPORT)},
            f"start is {len(REPORT)}; the result has the characters 0 to {len(REPORT) - 1}",
        ),
        ({"characters": 0}, "characters is 0; it must be 1 to 18000"),
        ({"handle": "9:9"}, "there is no stored result '9:9' in this run; stored results: 1:0"),
    ],
)
async def test_bad_requests_for_a_part_are_answered_with_the_allowed_values(
    arguments: dict[str, Any], why: str
) -> None:
    script = [call("report"), call("read_result", **{"handle": "1:0", **arguments}), "done"]
    result = await agent(script, [report, read_result]).run("go")
    assert why in tools_said(result.messages)[1]
    assert result.messages[4].is_error


async def test_text_that_a_hook_removed_is_not_stored() -> None:
    class Redaction:
        async def after_tool_execution(self, run: Any, result: ToolResult) -> ToolResult:
            return ToolResult(result.call, result.position, "removed", cut=True, whole=result.whole)

    journal = MemoryJournal()
    script = [call("report"), call("read_result", handle="1:0"), "done"]
    run = agent(script, [report, read_result], journal=journal, hooks=[Redaction()]).run(
        "go", run_id="hooked"
    )
    result = await run
    assert tools_said(result.messages)[0] == "removed"
    assert all("whole" not in body for body in await done_records(journal, "hooked"))


async def test_a_stored_result_is_read_after_the_process_that_stored_it(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def held(request: Request) -> Any:
        if request.messages[-1].role == "user":
            return call("report")
        asked.set()
        return await asyncio.Event().wait()

    async with SqliteJournal(tmp_path / "journal.db") as journal:
        first = agent(FunctionLLM(held), [report, read_result], journal=journal)
        running = asyncio.create_task(first.run("go", run_id="stored"))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        script = [call("read_result", handle="1:0", start=5_000_000, characters=20), "read"]
        result = await agent(script, [report, read_result], journal=journal).resume("stored")
    assert result.output == "read"
    assert tools_said(result.messages)[1].partition("\n")[2] == REPORT[5_000_000:5_000_020]


def test_the_mark_keeps_the_limit_whatever_the_lengths(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        text = "a" * chance.randrange(1, 5_000)
        limit = chance.randrange(120, 6_000)
        shown, was_cut = cut(text, limit, mark_of("12:3"))
        assert len(shown) <= limit
        assert was_cut == (len(text) > limit)
        if was_cut:
            start = re.search(r"start=(\d+)\)", shown)
            assert start is not None
            assert shown.startswith(text[: int(start[1])] + "…")


def test_a_tool_message_of_a_stored_result_is_the_shown_text() -> None:
    result = ToolResult(ToolCall("1", "report", "{}"), 0, "shown", cut=True, whole="whole")
    assert result.message() == Message("tool", "shown", (), "1", "report")

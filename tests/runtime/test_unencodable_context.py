"""A context that no record can hold: the run fails at the transition whose record it belongs to, in every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import JournalError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Response
from orchestrator.providers.scripted import call
from tests.runtime.stage import agent

VALUES = {
    "an object": object(),
    "half a character": "\ud800",
    "a number of 65 bits": 2**64,
}


async def test_half_a_character_in_the_name_of_a_model_stops_no_run() -> None:
    script = [Response(tool_calls=(call("look_up", key="a"),), model="m\ud800"), "done"]
    journal = MemoryJournal()
    result = await agent(script, [look_up], journal=journal).run("go")
    assert (result.outcome, result.output) == ("completed", "done")
    records = await journal.load(result.run_id)
    assert next(record.body["model"] for record in records if record.kind == "answer") == "m?"


def look_up(key: str) -> str:
    return f"value of {key}"


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("field", ["fault", "spent.seconds"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_run_fails_at_the_transition_whose_record_cannot_be_written(
    store: str, field: str, value: Any, tmp_path: Path
) -> None:
    class Host:
        async def leave_process_tools(self, run: Any) -> None:
            part, _, name = field.rpartition(".")
            setattr(getattr(run.ctx, part) if part else run.ctx, name, value)

    journal: Journal = MemoryJournal() if store == "memory" else SqliteJournal(tmp_path / "journal.db")
    script = [call("look_up", key="a"), "done"]
    result = await agent(script, [look_up], hooks=[Host()], journal=journal).run("go")
    assert (result.outcome, result.reason) == ("failed", "journal_error")
    assert isinstance(result.error, JournalError)
    assert "is not plain data" in str(result.error)
    records = await journal.load(result.run_id)
    assert [record.body["event"] for record in records if record.kind == "transition"] == [
        "start_loop",
        "llm_response",
        "response_with_tools",
    ]
    await journal.close()

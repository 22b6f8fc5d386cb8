"""Runs that an earlier version left open continue, though classes of their contexts have other names now."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator import MemoryJournal, SqliteJournal
from tests.runtime.open_runs import resumptions, starts

JOURNAL = Path(__file__).resolve().parents[1] / "data" / "journal" / "open_v1.db"


@pytest.mark.parametrize("run_id", ["llm_loop", "pipeline", "code_mode", "tools_mode"])
async def test_an_open_run_of_an_earlier_version_continues_to_the_same_result(
    tmp_path: Path, run_id: str
) -> None:
    shutil.copyfile(JOURNAL, tmp_path / "journal.db")
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        before = await journal.head(run_id)
        assert before.status == "open"
        resumed = await _one(resumptions(journal), run_id)
        kinds = [record.kind for record in await journal.load(run_id)]
    whole = await _one(starts(MemoryJournal()), run_id)

    assert "migrated" not in kinds, "its fingerprint is that of today's graph"
    assert (resumed.outcome, resumed.output) == (whole.outcome, whole.output)
    assert resumed.outcome == "completed"
    assert len(kinds) > before.seq + 2


async def _one(work: dict[str, Any], run_id: str) -> Any:
    chosen = work.pop(run_id)
    for other in work.values():
        other.close()
    return await chosen

"""Why a journal could not be written: the word that journal_write_failures_total, log and alert go by."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import apsw
import pytest
from prometheus_client import CollectorRegistry

from orchestrator import Agent, SqliteJournal, tool
from orchestrator.errors import Corrupt, JournalError, StoreDown
from orchestrator.journal.sqlite.error_mapping import explain
from orchestrator.kernel.fact import Observer
from orchestrator.llm.message import ToolCall
from orchestrator.telemetry import Metrics, TransitionLog
from orchestrator.telemetry.catalogue import ROWS
from orchestrator.testing import ScriptedLLM

FAILURES = "orchestrator_journal_write_failures_total"
REASONS = ROWS["journal_write_failures_total"].values["reason"]


class Stand:
    """An agent on an SQLite journal, and what it tells."""

    def __init__(self, path: Path) -> None:
        self.registry = CollectorRegistry()
        self.lines = io.BytesIO()
        self.journal = SqliteJournal(path, busy=0.05)
        self.observers: list[Observer] = [TransitionLog(self.lines), Metrics(self.registry)]

    def counted(self) -> dict[str, float]:
        found = {}
        for reason in REASONS:
            labels = {"backend": "sqlite", "reason": reason}
            found[reason] = self.registry.get_sample_value(FAILURES, labels) or 0.0
        return {reason: count for reason, count in found.items() if count}

    def logged(self) -> list[str]:
        lines = [json.loads(text) for text in self.lines.getvalue().splitlines()]
        failed = [line for line in lines if line["msg"] == "journal.failed"]
        assert {line["journal"] for line in failed} <= {str(self.journal.path)}
        return [line["reason"] for line in failed]


async def test_a_journal_that_another_process_holds_is_locked_in_metric_and_log(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    stand, rival = Stand(path), apsw.Connection(str(path))

    @tool(effect="pure")
    async def lock() -> str:
        """Let somebody else take the journal."""
        rival.execute("BEGIN IMMEDIATE")
        return "locked"

    llm = ScriptedLLM([[ToolCall("1", "lock", "{}")], "never said"])
    async with stand.journal as journal:
        agent = Agent(llm, tools=[lock], journal=journal, observers=stand.observers)
        result = await agent.run("go")
        rival.close()
    assert (result.outcome, result.reason) == ("failed", "journal_error")
    assert stand.counted() == {"locked": 1}
    assert stand.logged() == ["locked"]


async def test_a_disk_that_is_full_is_full_for_whoever_comes_later_too(tmp_path: Path) -> None:
    stand = Stand(tmp_path / "journal.db")

    @tool(effect="pure")
    async def fill() -> str:
        """Let the disk be full from now on."""
        handle = stand.journal._handle
        assert handle is not None
        await handle.writer.call(lambda tx: tx.cursor.execute("PRAGMA max_page_count=1").get)
        return "x" * 60_000

    async with stand.journal as journal:
        agents = [
            Agent(
                ScriptedLLM([[ToolCall("1", "fill", "{}")], "never said"]),
                tools=[fill],
                journal=journal,
                observers=stand.observers,
            )
            for _ in range(2)
        ]
        result = await agents[0].run("go")
        with pytest.raises(StoreDown, match="full") as refused:
            await agents[1].run("go")
    assert (result.outcome, result.reason) == ("failed", "journal_error")
    assert stand.counted() == {"full": 2}  # the record of the first, and the second that was not begun
    assert refused.value.kind == "full"


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (apsw.BusyError("busy"), StoreDown, "locked"),
        (apsw.LockedError("locked"), StoreDown, "locked"),
        (apsw.FullError("no room"), StoreDown, "full"),
        (OSError(errno.ENOSPC, "no room"), StoreDown, "full"),
        (OSError(errno.EIO, "broken"), StoreDown, "io"),
        (apsw.IOError("broken"), StoreDown, "io"),
        (apsw.CorruptError("damaged"), Corrupt, "corrupt"),
        (apsw.NotADBError("no journal"), Corrupt, "corrupt"),
        (apsw.ReadOnlyError("read-only"), StoreDown, "other"),
    ],
)
def test_what_the_system_says_is_one_word_of_the_metric(
    tmp_path: Path, error: Exception, kind: type[JournalError], word: str
) -> None:
    told = explain(error, tmp_path / "journal.db", 5.0)
    assert type(told) is kind
    assert told.kind == word
    assert word in REASONS


def test_a_store_that_says_nothing_is_other() -> None:
    assert StoreDown("somewhere else").kind == JournalError("somehow").kind == "other"

"""One damaged run hides no other from whoever lists runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

from orchestrator.journal.codec import Identity, head_change
from orchestrator.journal.difference import heads
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.testing.journal_contract import BODY


async def test_runs_that_can_be_trusted_are_returned_with_a_sentence_about_the_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        for name in ("first", "second", "third"):
            await journal.create(name, "me", {**BODY, "graph": "odd" if name == "third" else "llm_loop"})
        found, damage = await heads(journal)
        assert ([head.run_id for head in found], damage) == (["first", "second", "third"], "")
        assert [head.run_id for head in (await heads(journal, graph="odd", status="open"))[0]] == ["third"]
        assert await heads(journal, status="ended") == ([], "")

        with closing(apsw.Connection(str(path))) as db:
            db.execute("UPDATE run SET status = 'ended' WHERE run_id = 'second'")
        found, damage = await heads(journal)
        assert [head.run_id for head in found] == ["first", "third"]
        assert "second" in damage


def test_an_append_that_migrates_a_run_and_gives_it_to_another_agent_changes_both() -> None:
    migrated, resumed = ("migrated", {"to": "f2"}), ("resumed", {"agent": "sales"})
    assert head_change([migrated, resumed]).identity == Identity("f2", "sales")
    assert head_change([migrated]).then(head_change([resumed])) == head_change([migrated, resumed])

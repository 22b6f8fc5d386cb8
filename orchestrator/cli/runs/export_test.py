"""`orchestrator runs export --as-test`: a test that replays the run, with the records that it needs."""

from __future__ import annotations

import re
from json import dumps
from pathlib import Path
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.export import write_new
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.runtime.run_replay.archive import archive_of, journal_of
from orchestrator.runtime.run_replay.replay import replay_run

_TEST = '''"""Run {run_id}: it takes its recorded transitions again."""

import asyncio
from pathlib import Path

from orchestrator.testing import assert_replays


def test_run_{name}_takes_its_recorded_transitions() -> None:
    asyncio.run(assert_replays(Path(__file__).with_suffix(".json"), {quoted}))
'''


def export_test(
    name: str, folder: Path, *, content: bool, output: Path | None, json: bool, journal: Address | None
) -> int:
    """Write a test and its records into a folder. Raises ConfigError, before anything is written, if it would fail."""
    if content or output is not None:
        raise ConfigError("--as-test writes its own files: leave out --content and --output")

    async def work(store: OpenStore) -> tuple[str, dict[str, Any]]:
        head = await store.run(name)
        data = archive_of(head.run_id, await store.journal.load(head.run_id))
        copy = await journal_of(data)
        replay = await replay_run(head.run_id, await copy.load(head.run_id))
        if replay.difference is not None:
            raise ConfigError(
                f"run {head.run_id} does not replay, so a test of it would fail: {replay.difference}"
            )
        return head.run_id, data

    run_id, data = at_journal(journal, work, only_reads=True)
    word = re.sub(r"\W", "_", run_id, flags=re.ASCII)
    test, records = folder / f"test_run_{word}.py", folder / f"test_run_{word}.json"
    if test.exists():
        raise ConfigError(f"{test} exists and was not overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    write_new(records, dumps(data))
    write_new(test, _TEST.format(run_id=shown(run_id, keep=""), name=word, quoted=dumps(run_id)).rstrip("\n"))
    if json:
        say_json({"run_id": run_id, "test": str(test.absolute()), "records": str(records.absolute())})
    else:
        say(
            f"{test}: a test of run {shown(run_id)}; its records are in {records}. Review them before you share them"
        )
    return Exit.COMPLETED

"""T19: runs that released versions left in a journal are told, or gone on with, for ever; newer ones are refused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from orchestrator.errors import TooNew
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import RECORD_SCHEMA
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.recovery import Migration
from orchestrator.testing.clock import FakeClock
from orchestrator_guards import DIGEST_VERSION
from tests.crash.golden import KINDS, Writer, main
from tests.crash.invariants import check_run
from tests.crash.outside import CALLS, Outside, agent, said_by
from tests.journal import format_1

pytestmark = pytest.mark.canary

DATA = Path(__file__).resolve().parents[1] / "data" / "journal"
GOLDEN = ("loop_v1",)
TOLD = [said_by(tool, turn) for turn, tools in CALLS.items() for tool in tools]
WILL = {
    "approval": "waits for a person: may pay run? (call 4:0); continues in process_tools",
    "midturn": "takes book back and runs it again (compensable)",
    "migrated": "waits for a person: may pay run? (call 4:0); continues in process_tools",
    "paused": "continues in process_tools",
}


@pytest.fixture(params=["sqlite", "postgres"])
def copied(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[str], SqliteJournal | PostgresJournal]:
    """`copied(golden)` is a copy of a journal that an older version wrote, in each store that keeps journals."""

    def copy(golden: str) -> SqliteJournal | PostgresJournal:
        written = DATA / f"{golden}.db"
        if request.param == "sqlite":
            shutil.copyfile(written, tmp_path / "journal.db")
            return SqliteJournal(tmp_path / "journal.db")
        database: str = request.getfixturevalue("database")
        format_1.copy_to_tables(written, database)
        return PostgresJournal(database)

    return copy


@pytest.mark.parametrize("golden", GOLDEN)
async def test_runs_of_an_older_version_are_as_they_were_and_go_on(
    golden: str, copied: Callable[[str], SqliteJournal | PostgresJournal]
) -> None:
    expected = orjson.loads((DATA / f"{golden}.json").read_bytes())
    outside, clock = Outside(), FakeClock()
    async with copied(golden) as journal:
        assert (await journal.check()).ok
        made = {head.run_id: head async for head in journal.runs()}
        found = {
            run: [head.status, head.reason, head.fingerprint, (await journal.load(run))[-1].hash]
            for run, head in made.items()
        }
        assert found == {run: told[:4] for run, told in expected.items()}
        kinds = {kind for told in expected.values() for kind in told[4]}
        assert kinds == KINDS

        # What a later version changes in the context has a default, or a migration of its own here.
        others = {head.fingerprint for head in made.values()} - {LLM_LOOP.fingerprint}
        ways = [Migration(one, lambda stored: stored) for one in others]
        one = agent(outside, journal, clock=clock, migrations=ways)
        plans = {plan.run_id: plan.will for plan in await one.hosting.open_runs()}
        assert plans.keys() == WILL.keys()
        assert all(will in plans[run] for run, will in WILL.items()), plans
        for run in made:
            result = await gone_on(one, run)
            assert result.outcome is Outcome.COMPLETED, run
            assert [message.text for message in result.messages if message.role == "tool"] == TOLD, run
            assert result.output.total == 7, run
            if run in WILL:
                await check_run(journal, run, outside.history, agent=one, older=True)


async def gone_on(one: Agent, run: str) -> Result:
    """Resume, and approve what is asked."""
    going = asyncio.create_task(one.resume(run))
    answered: set[str] = set()
    while not going.done():
        await asyncio.sleep(0.001)
        for question in [] if one._service.live.find(run) is None else await one.pending(run):
            if question.digest not in answered:
                answered.add(question.digest)
                one.approve(run, question.key, by="ann")
    return await going


async def test_a_question_with_an_older_digest_is_asked_again(tmp_path: Path) -> None:
    shutil.copyfile(DATA / "loop_v1.db", tmp_path / "journal.db")
    outside, clock = Outside(), FakeClock()
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        made = {head.fingerprint async for head in journal.runs()} - {LLM_LOOP.fingerprint}
        ways = [Migration(one, lambda stored: stored) for one in made]
        one = agent(outside, journal, clock=clock, migrations=ways)
        [old] = await one.pending("approval")
        assert old.version == 1
        await one.approve(
            "approval", old.key, digest=old.digest, by="ann"
        )  # posted, and refused when it is read
        assert (
            "asks a person again"
            in {plan.run_id: plan.will for plan in await one.hosting.open_runs()}["approval"]
        )
        await gone_on(one, "approval")
        records = [(record.kind, record.body) for record in await journal.load("approval")]
        asked = [body for kind, body in records if kind == "asked"]
        assert [body.get("version", 1) for body in asked] == [1, DIGEST_VERSION]
        [answer] = [body for kind, body in records if kind == "approval"]
        assert answer["digest"] == asked[1]["digest"] != old.digest
        refused = [body["refused"] for kind, body in records if kind == "control" and body.get("refused")]
        assert len(refused) == 1


async def test_what_is_written_today_has_every_kind_of_record(tmp_path: Path) -> None:
    await main(tmp_path)
    told, expected = (orjson.loads((at / "loop_v1.json").read_bytes()) for at in (tmp_path, DATA))
    assert {run: [*one[:2], one[4]] for run, one in told.items()} == {
        run: [*one[:2], one[4]] for run, one in expected.items()
    }, "the kinds of records and their order changed: that is a new version, with a golden journal of its own"


async def test_a_run_of_a_newer_version_is_refused_in_one_sentence_and_stays_as_it_is(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await Writer(journal).left("known", Writer(journal).agent())
        newer = {
            "schema": RECORD_SCHEMA + 1,
            "graph": "llm_loop",
            "fingerprint": LLM_LOOP.fingerprint,
            "at": 1.0,
        }
        await journal.release(await journal.create("newer", "tomorrow", newer))
        one = agent(Outside(), journal)
        before = await journal.head("newer")
        with pytest.raises(TooNew) as refused:
            await one.resume("newer")
        assert str(refused.value) == "run 'newer' has records of version 2; this version reads up to 1"
        assert await journal.head("newer") == before
        plans = {plan.run_id: plan.will for plan in await one.hosting.open_runs()}
        assert plans["newer"] == f"nothing: {refused.value}"
        assert (
            plans["known"] == "continues: the question about pay has expired (call 4:0)"
        )  # its question is years old

"""The command line on a journal in PostgreSQL: the same commands, the same words, and no password anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from orchestrator.cli.metrics import JournalWatch
from orchestrator.journal import opening
from orchestrator.journal.address import JournalAddress
from orchestrator.journal.postgres import PostgresJournal
from tests.cli.recorded import JOURNAL
from tests.postgres import Cluster

Cli = Callable[..., Any]
LOOKS = ("run", "How many moons?", "--model", "python:models:answers", "--tool", "models:look")


@pytest.fixture
def at(folder: Path, database: str) -> tuple[str, str]:
    return ("--journal", database)


def words(done: Any) -> str:
    assert done.code == 0, done.err
    return str(done.out)


@pytest.mark.parametrize("option", ["--journal", "--dsn"])
def test_a_run_is_kept_and_told_of_as_in_a_file(cli: Cli, database: str, option: str) -> None:
    at = (option, database)
    assert "Two moons." in words(cli(*LOOKS, "--run-id", "moons", *at))
    assert "moons" in words(cli("runs", "list", *at))
    shown = words(cli("runs", "show", "moon", *at))
    assert "completed" in shown
    events = [json.loads(line) for line in words(cli("runs", "events", "moons", "--json", *at)).splitlines()]
    assert [event["kind"] for event in events][0 :: len(events) - 1] == ["created", "ended"]
    exported = json.loads(words(cli("runs", "export", "moons", "--content", *at)).splitlines()[0])
    assert exported


def test_the_environment_names_it_too(cli: Cli, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", database)
    assert cli(*LOOKS, "--run-id", "moons").code == 0
    assert "moons" in words(cli("runs", "list"))
    assert not Path("postgresql:").exists()
    assert not Path(".orchestrator").exists()


def test_a_run_that_ended_can_be_forked_resumed_and_erased(cli: Cli, at: tuple[str, str]) -> None:
    words(cli(*LOOKS, "--run-id", "moons", *at))
    again = cli(
        "runs", "fork", "moons", "--turn", "1", "--run-id", "other", "--model", "python:models:wraps_up", *at
    )
    assert "One moon so far." in words(again) or again.code == 0
    assert "Two moons." in words(cli("runs", "resume", "moons", *at))
    refused = cli("runs", "erase", "moons", *at)
    assert refused.code == 2
    assert "erased run moons" in words(cli("runs", "erase", "moons", "--yes", *at))
    assert cli("runs", "show", "moons", *at).code == 2
    assert "1 ended run to remove" in words(cli("runs", "prune", "--keep-last", "0", *at))
    assert "removed 1 run" in words(cli("runs", "prune", "--keep-last", "0", "--yes", *at))


def test_doctor_proves_it_and_says_how_the_server_is_set(cli: Cli, at: tuple[str, str]) -> None:
    words(cli(*LOOKS, "--run-id", "moons", *at))
    told = words(cli("doctor", *at))
    assert "PostgreSQL 1" in told
    assert "fsync=on, full_page_writes=on, synchronous_commit=on, data_checksums=on" in told
    assert "1 run, " in told
    assert told.rstrip().endswith("healthy")
    found = json.loads(words(cli("doctor", "--json", *at)))
    assert (found["ok"], found["runs"], found["open"]) == (True, 2, []), "with the run of the verdicts"


def test_a_copy_is_the_servers_business(
    cli: Cli, at: tuple[str, str], one_sentence: Callable[[Any], str], tmp_path: Path
) -> None:
    words(cli(*LOOKS, *at))
    for command in (("backup", "copy.db"), ("restore", "copy.db")):
        refused = cli("runs", *command, *at)
        assert refused.code == 2
        assert "pg_" in one_sentence(refused)
    assert not (tmp_path / "copy.db").exists()


def test_the_figures_of_a_journal_are_those_of_its_server(
    cli: Cli, database: str, at: tuple[str, str]
) -> None:
    words(cli(*LOOKS, *at))

    async def look() -> Any:
        watch = JournalWatch(JournalAddress(database))
        try:
            return await watch.look()
        finally:
            await watch.close()

    picture = asyncio.run(look())
    assert picture.ended == {("llm_loop", "_none", "completed", "none"): 1}
    assert picture.bytes > 100_000


def test_a_pipeline_runs_on_it(cli: Cli, at: tuple[str, str]) -> None:
    done = cli("pipeline", "run", "--example", "--run-id", "pipe", *at)
    assert done.code == 0, done.err
    assert "pipe" in words(cli("runs", "list", *at))


def test_engines_are_asked_through_it(
    cli: Cli, at: tuple[str, str], one_sentence: Callable[[Any], str]
) -> None:
    words(cli(*LOOKS, *at))
    assert "no engine" in one_sentence(cli("operate", "status", *at))


# ---- what is wrong ----


def test_a_journal_that_is_not_there_is_not_made_by_looking(
    cli: Cli, at: tuple[str, str], database: str, one_sentence: Callable[[Any], str]
) -> None:
    for command in (("runs", "list"), ("runs", "show", "moons"), ("runs", "resume", "moons")):
        refused = cli(*command, *at)
        assert refused.code == 2
        assert "there is no journal in postgresql://" in one_sentence(refused)


BAD: Sequence[tuple[str, str]] = [
    ("mysql://me:hunter2@localhost/db", "not mysql://"),
    ("postgresql://me:hunter2@localhost:port/db", ""),
    ("postgresql://me:hunter2@localhost:1/db", "cannot be reached"),
    ("postgresql://me:hun%zzter2@localhost:1/db", "is not an address"),
    ("postgresql://me:hunter2@localhost/db?colour=red", "is not an address"),
    ("postgresql://me:hunter2@nowhere.invalid/db", "cannot be reached"),
]


@pytest.mark.parametrize(("address", "said"), BAD)
def test_an_address_that_leads_nowhere_is_one_sentence_without_its_password(
    cli: Cli, address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPENING", 0.1)
    for command in (("runs", "list"), (*LOOKS,)):
        refused = cli(*command, "--journal", address)
        assert refused.code == 2
        assert said in refused.err
        assert "Traceback" not in refused.err
        assert "hun" not in refused.out + refused.err


def test_a_wrong_password_is_told_without_it(
    cli: Cli, postgres: Cluster, one_sentence: Callable[[Any], str]
) -> None:
    wrong = postgres.dsn().replace(postgres.password, "hunter2")
    for command in (("runs", "list"), LOOKS):
        told = one_sentence(cli(*command, "--journal", wrong))
        assert "password authentication failed" in told
        assert "hunter2" not in told


def test_no_command_and_no_log_shows_the_password(
    cli: Cli, postgres: Cluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--journal", database)
    everything = [
        cli(*LOOKS, "--run-id", "moons", "--log", "log.jsonl", *at),
        cli("runs", "show", "moons", *at),
        cli("runs", "show", "nobody", *at),
        cli("runs", "export", "moons", *at),
        cli("runs", "erase", "moons", *at),
        cli("doctor", *at),
        cli("doctor", "--json", *at),
    ]
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", database)
    everything += [cli("config", "show"), cli("config", "show", "--json"), cli("runs", "list", "--json")]
    said = "".join(done.out + done.err for done in everything) + Path("log.jsonl").read_text()
    assert postgres.password not in said
    where = urlsplit(database)
    assert f"@{where.hostname}:{where.port}{where.path}" in said
    assert "traceback" not in said.lower()
    assert not Path(JOURNAL).exists()


def test_the_address_of_a_database_is_no_path_and_shows_no_password(database: str, postgres: Cluster) -> None:
    journal = PostgresJournal(database)
    assert postgres.password not in f"{journal.address} {journal.address!r}"
    assert postgres.password in journal.address.secret

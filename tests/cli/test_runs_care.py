"""`runs prune`, `erase`, `backup`, `restore`; and what every command of `runs` says to bad input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from orchestrator.journal.sqlite import SqliteJournal
from tests.cli.recorded import JOURNAL, SECRET, Call, Tape, play, record

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


def ids(path: str = JOURNAL) -> list[str]:
    async def read() -> list[str]:
        async with SqliteJournal(path) as journal:
            return [head.run_id async for head in journal.runs()]

    return asyncio.run(read())


def aged(path: str = JOURNAL) -> None:
    """Make runs one, two, three (ended, last written to 1, 2 and 3 hours ago) and one that is open."""

    async def made() -> None:
        import time

        hours = {"one": 1, "two": 2, "three": 3, "open": 9}
        for name, age in sorted(hours.items(), key=lambda item: -item[1]):
            at = time.time() - age * 3_600
            async with SqliteJournal(path, now=lambda at=at: at) as journal:  # type: ignore[misc]
                tape = Tape(name, began=at).begin()
                await journal.release(await play(tape if name == "open" else tape.completes(), journal))

    asyncio.run(made())


# ---- prune ----

PRUNED: Sequence[tuple[tuple[str, ...], list[str]]] = [
    (("--older-than", "90m"), ["open", "one"]),
    (("--older-than", "30d"), ["open", "three", "two", "one"]),
    (("--keep-last", "2"), ["open", "two", "one"]),
    (("--keep-last", "0"), ["open"]),
    (("--keep-last", "2", "--older-than", "1s"), ["open", "two", "one"]),
    (("--keep-last", "1", "--older-than", "150m"), ["open", "two", "one"]),
]


@pytest.mark.parametrize(("conditions", "left"), PRUNED, ids=" ".join)
def test_pruning_removes_ended_runs_that_meet_every_condition_and_counts_them_first(
    cli: Cli, folder: Path, conditions: tuple[str, ...], left: list[str]
) -> None:
    aged()
    removed = 4 - len(left)
    said = cli("runs", "prune", *conditions, *AT)
    assert said.out.startswith(f"{removed} ended run")
    assert said.out.endswith("nothing was removed: add --yes\n")
    assert json.loads(cli("runs", "prune", *conditions, *AT, "--json").out) == {"would_remove": removed}
    assert len(ids()) == 4
    assert cli("runs", "prune", *conditions, "--yes", *AT).out.startswith(f"removed {removed} run")
    assert ids() == left
    assert json.loads(cli("runs", "prune", *conditions, "--yes", *AT, "--json").out) == {"removed": 0}


def test_the_space_of_pruned_runs_is_returned_and_counted(cli: Cli, folder: Path) -> None:
    record(*(Tape(f"run-{n}", prompt="long " * 20_000).begin().completes() for n in range(10)))
    before = Path("journal.db").stat().st_size
    assert "nothing was removed: add --yes" in cli("runs", "prune", "--keep-last", "1", "--vacuum", *AT).out
    assert Path("journal.db").stat().st_size == before
    done = json.loads(cli("runs", "prune", "--keep-last", "1", "--yes", "--vacuum", *AT, "--json").out)
    assert done["removed"] == 9
    assert done["returned_bytes"] > 500_000
    assert Path("journal.db").stat().st_size <= before - 500_000
    said = cli("runs", "prune", "--vacuum", *AT).out
    assert re.fullmatch(r"returned 0 B to the file system; the journal has [\d.]+ KiB\n", said), said
    assert cli("doctor", *AT).code == 0


# ---- erase ----


def test_erasing_asks_for_yes_and_leaves_no_byte(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(Tape("run-one", prompt=SECRET).begin().completes(), Tape("run-two", prompt="other").begin())
    done = cli("runs", "erase", "run-one", *AT)
    assert (
        "was not erased: it cannot be brought back; `orchestrator runs erase run-one --yes"
        in one_sentence(done)
    )
    assert (done.code, ids()) == (2, ["run-one", "run-two"])
    done = cli("runs", "erase", "run-o", "--yes", *AT)
    assert done.out == "erased run run-one; copies made by `runs backup` still have it\n"
    assert ids() == ["run-two"]
    for file in Path().glob(f"{JOURNAL}*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_a_run_that_somebody_holds_is_not_erased(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    async def held() -> Any:
        async with SqliteJournal(JOURNAL) as journal:
            await play(Tape("run-one"), journal)
            return await asyncio.to_thread(cli, "runs", "erase", "run-one", "--yes", *AT)

    done = asyncio.run(held())
    then = "wait until it is released, cancel the run, or inspect it: `orchestrator runs show run-one`"
    guide = "see `orchestrator docs durability`"
    assert one_sentence(done) == f"orchestrator: run 'run-one' is held by worker-1; {then}; {guide}"
    assert (done.code, ids()) == (2, ["run-one"])


# ---- backup and restore ----


def test_a_backup_is_restored_elsewhere(cli: Cli, folder: Path) -> None:
    record(Tape("run-one").begin().completes())
    done = cli("runs", "backup", "copy.db", *AT)
    assert re.match(
        r"copy\.db: \S+ KiB, every run proved; to use it:\n  orchestrator runs restore copy\.db", done.out
    )
    assert cli("runs", "erase", "run-one", "--yes", *AT).code == 0
    done = cli("runs", "restore", "copy.db", "--journal", "new/journal.db")
    assert (done.code, ids("new/journal.db")) == (0, ["run-one"])
    assert "orchestrator runs list --journal new/journal.db" in done.out
    assert json.loads(cli("runs", "backup", "again.db", *AT, "--json").out)["backup"] == str(
        Path("again.db").absolute()
    )


def test_nothing_is_copied_over_what_exists(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(Tape("run-one").begin().completes())
    cli("runs", "backup", "copy.db", *AT)
    before = Path("copy.db").read_bytes()
    for command in (
        ("backup", "copy.db", *AT),
        ("restore", "copy.db", *AT),
        ("restore", "none.db", "--journal", "x.db"),
    ):
        done = cli("runs", *command)
        assert re.search(r"exists and was not overwritten|none\.db does not exist", one_sentence(done))
        assert done.code == 2
    assert Path("copy.db").read_bytes() == before
    assert not Path("x.db").exists()


# ---- bad input ----

COMMANDS = [
    ("list",),
    ("show", "run-one"),
    ("events", "run-one"),
    ("events", "run-one", "--follow"),
    ("export", "run-one"),
    ("approve", "run-one"),
    ("reject", "run-one"),
    ("respond", "run-one", "text"),
    ("cancel", "run-one"),
    ("pause", "run-one"),
    ("prune", "--keep-last", "1"),
    ("erase", "run-one", "--yes"),
    ("backup", "copy.db"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_journal_that_is_not_there_is_one_sentence_and_is_not_created(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    before = sorted(Path().rglob("*"))
    done = cli("runs", *command)
    expected = f"there is no journal {folder}/.orchestrator/journal.db: name another with --journal"
    assert expected in one_sentence(done)
    assert (done.code, sorted(Path().rglob("*"))) == (2, before)


@pytest.mark.parametrize("command", [one for one in COMMANDS if "run-one" in one], ids=" ".join)
def test_an_unknown_run_is_one_sentence_with_those_like_it(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    record(Tape("run-two").begin(), Tape("something else").begin())
    done = cli("runs", *command, *AT)
    assert one_sentence(done) == (
        f"orchestrator: no run 'run-one' in {folder}/journal.db; like it: run-two; "
        "`orchestrator runs list --journal journal.db` shows what is there"
    )
    assert done.code == 2


NAMES = [
    ("abcd1", "abcd1"),
    ("abcd11", "abcd11"),
    ("wxyz", "wxyz-the-only-one"),
    ("abcd", "'abcd' begins 3 run ids: abcd1, abcd11, abcd2; give more of its characters"),
    ("wxy", "no run 'wxy' in "),
    ("", "no run '' in "),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_four_characters_that_only_one_run_begins_with_are_enough(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, name: str, expected: str
) -> None:
    record(*(Tape(one) for one in ("abcd1", "abcd11", "abcd2", "wxyz-the-only-one")))
    done = cli("runs", "show", name, "--json", *AT)
    if " " in expected:
        assert expected in one_sentence(done)
        assert done.code == 2
    else:
        assert json.loads(done.out)["run_id"] == expected


BAD = [
    (("list", "--status", "dead"), "unknown status 'dead'; known: open, parked, ended"),
    (("list", "--limit", "-1"), "limit is -1; it must be 0 (all) or more"),
    (
        ("events", "run-one", "--since", "-1"),
        "since is -1; it must be the number of a record, 0 or more, or RUN=NUMBER with --tree",
    ),
    (("prune",), "nothing was removed: say which runs with --older-than 30d or --keep-last 100, or both"),
    (("prune", "--yes"), "nothing was removed: say which runs"),
    (("prune", "--older-than", "soon", "--yes"), "'soon' is no duration; one is a number and s, m, h or d"),
    (("prune", "--keep-last", "-1", "--yes"), "keep-last is -1; it must be 0 or more"),
    (("export", "run-one", "--content"), "run 'run-one' has no messages yet"),
    (("fly",), "No such command 'fly'; see `orchestrator runs --help`"),
]


@pytest.mark.parametrize(("command", "said"), BAD, ids=lambda value: str(value)[:50])
def test_bad_options_are_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...], said: str
) -> None:
    record(Tape("run-one", context={}).begin(), Tape("gone").begin().completes())
    done = cli("runs", *command, *(AT if command != ("fly",) else ()))
    assert said in one_sentence(done)
    assert done.code == 2
    assert len(ids()) == 2


def spoil(file: str) -> None:
    Path(file).write_bytes(b"not a database, but long enough to look at" * 100)


def too_new(file: str) -> None:
    record(Tape("run-one"), path=file)
    db = apsw.Connection(file)
    db.pragma("user_version", 99)
    db.close()


def foreign(file: str) -> None:
    db = apsw.Connection(file)
    db.execute("CREATE TABLE moon(cheese)")
    db.close()


UNUSABLE = [
    (spoil, "journal"),
    (too_new, "has version 99; this version of fsm-orchestrator reads up to 3"),
    (foreign, "is a SQLite database, but not a journal"),
]


@pytest.mark.parametrize("command", [("list",), ("approve", "run-one")], ids=" ".join)
@pytest.mark.parametrize(("make", "said"), UNUSABLE, ids=["spoilt", "too new", "foreign"])
def test_a_file_that_cannot_be_used_is_one_sentence_and_stays_as_it_is(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    make: Callable[[str], None],
    said: str,
    command: tuple[str, ...],
) -> None:
    make(JOURNAL)
    before = Path(JOURNAL).read_bytes()
    done = cli("runs", *command, *AT)
    assert said in one_sentence(done)
    assert (done.code, Path(JOURNAL).read_bytes()) == (2, before)


def damage(run_id: str) -> None:
    """Change one byte of a record's body, behind the journal's back."""
    db = apsw.Connection(JOURNAL)
    row = db.execute("SELECT id FROM run WHERE run_id=?", (run_id,)).get
    db.execute(
        "UPDATE record SET body=cast(replace(cast(body AS TEXT), 'init', 'inat') AS BLOB) WHERE key >> 32 = ?",
        (row,),
    )
    db.close()


def test_a_run_that_was_tampered_with_is_refused_and_the_others_are_shown(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(Tape("run-one").begin(), Tape("run-two").begin())
    damage("run-one")
    done = cli("runs", "list", *AT)
    assert (done.code, done.out.count("await_llm")) == (0, 2), "it reads no records"
    assert "run 'run-one': record 1 is damaged" in cli("doctor", *AT).out
    assert cli("runs", "show", "run-two", *AT).code == 0
    done = cli("runs", "show", "run-one", *AT)
    assert "nothing of the run is used" in one_sentence(done)
    assert done.code == 2


def test_text_of_others_cannot_drive_the_terminal(cli: Cli, folder: Path) -> None:
    evil = "\x1b[2J\x07evil"
    tape = Tape(f"run{evil}", graph=evil, parent_run_id=evil, conversation_id=evil).begin()
    tape.asks(Call(evil, evil)).decided("1:0", "reject", by=evil, why=evil)
    record(tape.parks(evil))
    for command in ("show", "events"):
        done = cli("runs", command, f"run{evil}", *AT)
        assert "\x1b" not in done.out + done.err, command
        assert "\x07" not in done.out + done.err
    assert "\x1b" not in cli("runs", "list", *AT).out
    assert "\x1b" not in cli("runs", "cancel", f"run{evil}", *AT).out
    assert "\x1b" not in cli("doctor", *AT).out
    assert "\x1b" not in cli("runs", "approve", f"run{evil}", *AT).err


def test_locked_for_too_long_is_one_sentence(
    process: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(Tape("run-one").begin())
    db = apsw.Connection(JOURNAL)
    db.execute("BEGIN EXCLUSIVE")
    done = process("runs", "cancel", "run-one", *AT)
    db.close()
    assert f"was locked by process {os.getpid()} for more than 5 s: it is busy or hangs" in one_sentence(done)
    assert done.code == 2
    assert os.path.exists(JOURNAL)  # noqa: PTH110


@pytest.mark.parametrize("command", [(), *((one[0],) for one in COMMANDS), ("restore",)], ids=" ".join)
def test_each_command_of_runs_has_help(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli("runs", *command, "--help")
    assert done.out.startswith(
        f"Usage: orchestrator runs{' ' if command else ''}{' '.join(command)} [OPTIONS]"
    )
    assert (done.code, max(map(len, done.out.splitlines())) <= 100) == (0, True)


def test_headings_are_bold_on_a_terminal(start: Callable[..., Any], folder: Path) -> None:
    record(Tape("run-one").begin())
    ours, theirs = pty.openpty()
    running = start("runs", "show", "run-one", *AT, stdout=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    raw = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody holds the other end any more
        while data := os.read(ours, 65_536):
            raw += data
    os.close(ours)
    assert running.wait(timeout=60) == 0
    assert b"\x1b[1mtime in each state\x1b[0m" in raw

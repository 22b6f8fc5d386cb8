from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any, NoReturn

import apsw
import pytest

from orchestrator.cli import main
from orchestrator.errors import ConfigError
from orchestrator.files import bounded
from orchestrator.journal.sqlite import SqliteJournal, place
from tests.cli.parked import agents, parked, stored
from tests.cli.recorded import JOURNAL, Tape, inbox, record

Cli = Callable[..., Any]

RUN = ("run", "hi", "--model")
ANSWERS = (*RUN, "python:models:answers")

BAD = [
    (
        (*RUN, "echo"),
        "unknown model 'echo'; known: openai:NAME, openai-responses:NAME, anthropic:NAME, pydantic-ai:",
    ),
    ((*RUN, "nobody:gpt"), "unknown model 'nobody:gpt'; known: openai:NAME, "),
    (
        ("run", "hi", "--model", "python:models:answers", "--base-url", "http://127.0.0.1:9/v1"),
        "a base URL goes with openai, openai-responses, anthropic, pydantic-ai, not with 'python:models:answers'",
    ),
    ((*ANSWERS, "--param", "temperature"), "param 'temperature' is not of the form name=value"),
    ((*ANSWERS, "--mcp", "'open"), '"\'open" is not a command line: No closing quotation'),
    ((*ANSWERS, "--mcp", ""), "'' is not a command that can be started"),
    ((*RUN, "python:"), "names nothing after the colon"),
    ((*RUN, "python:models"), "model 'models' is not of the form module:attribute"),
    ((*RUN, "python:nowhere:x"), "there is no module 'nowhere'"),
    ((*RUN, "python:models:nothing"), "models has no 'nothing'"),
    ((*RUN, "python:models:number"), "is a int; a model is an object with `async complete(request)`"),
    ((*RUN, "python:models:silent"), "the factory returned a Response; a model is"),
    ((*RUN, "python:models:broken_factory"), "the factory raised OSError: no key"),
    ((*RUN, "python:broken:x"), "importing 'broken' raised ZeroDivisionError"),
    ((*RUN, "python:needy:x"), "module 'needy' cannot be imported: No module named 'what_it_needs'"),
    ((*RUN, "replay:missing.jsonl"), "missing.jsonl"),
    ((*RUN, "replay:malformed.jsonl"), "malformed.jsonl, line 1: malformed JSON"),
    ((*RUN, "replay:two.jsonl"), "choose one with replay:FILE#ID: a, b"),
    ((*RUN, "replay:two.jsonl#c"), "has no conversation 'c'"),
    (("run", "hi"), "no model: give --model or set ORCHESTRATOR_MODEL"),
    (("run",), "there is no prompt: give text, - for standard input, or --prompt of an MCP server"),
    ((*ANSWERS, "--limit", "max_iterations=-1"), "limit max_iterations is -1; it must be 0 (off) or more"),
    ((*ANSWERS, "--limit", "max_iterations=many"), "limits.max_iterations: Input should be a valid integer"),
    ((*ANSWERS, "--limit", "max_turns=3"), "limits.max_turns; known: "),
    ((*ANSWERS, "--limit", "max_iterations"), "limit 'max_iterations' is not of the form name=value"),
    ((*ANSWERS, "--limit", "tool_caps={look"), "limit tool_caps: '{look' is not JSON"),
    ((*ANSWERS, "--tool", "models"), "tool 'models' is not of the form module:attribute"),
    ((*ANSWERS, "--tool", "models:nothing"), "models has no 'nothing'"),
    ((*ANSWERS, "--tool", "models:number"), "a int cannot become a tool"),
    ((*ANSWERS, "--tool", "models:unfit"), "tool 'unfit': parameter 'anything' takes any number"),
    ((*ANSWERS, "--output-schema", "missing.json"), "missing.json: No such file or directory"),
    ((*ANSWERS, "--output-schema", "malformed.jsonl"), "malformed.jsonl is not JSON"),
    ((*ANSWERS, "--output-schema", "list.json"), "a schema is an object"),
    ((*ANSWERS, "--output-schema", "bad_schema.json"), "output_type is not a usable JSON schema"),
    ((*ANSWERS, "--log", "no/such/folder.jsonl"), "no/such/folder.jsonl: No such file or directory"),
    ((*ANSWERS, "--nonsense"), "No such option: --nonsense"),
    (("replay",), "nothing to replay: give a PATH, or --bundled"),
    (("replay", "missing.jsonl"), "missing.jsonl: No such file or directory"),
    (("replay", "two.jsonl", "missing"), "missing: No such file or directory"),
    (("replay", "empty"), "empty: no conversations here"),
    (("replay", "two.jsonl", "--limit", "max_iterations=-1"), "it must be 0 (off) or more"),
    (("replay", "two.jsonl", "--limit", "max_turns=1"), "limits.max_turns; known: "),
    (("replay", "two.jsonl", "--speed", "-1"), "speed is -1; it must be 0 (do not wait) or more"),
    (("replay", "two.jsonl", "--speed", "nan"), "speed is nan"),
    (("replay", "two.jsonl", "--speed", "inf"), "speed is inf; it must be 0 (do not wait) or more"),
    (("report", "deep.json"), "deep.json: no line of a transition"),
    ((*ANSWERS, "--output-schema", "deep.json"), "deep.json is not JSON (it is nested too deeply)"),
    ((*ANSWERS, "--limit", "tool_caps=" + "[" * 100_000), "is not JSON (it is nested too deeply)"),
    ((*ANSWERS, "--limit", "max_cost=inf"), "max_cost is more than a journal can keep; it must be 0 (off)"),
    ((*RUN, "replay:deep.json"), "deep.json: is nested too deeply"),
    (("ralph", "tasks", "digits/prd.json"), "prd.json: cannot be read: Exceeds the limit (4300 digits)"),
    (("pipeline", "run", "deep.toml"), "deep.toml cannot be read: it is not TOML (maximum recursion depth"),
    (("replay", "two.jsonl", "--speed", "fast"), "Invalid value for '--speed'"),
    (("replay", "two.jsonl", "--json", "--live"), "give one of them"),
    (
        ("graph", "nowhere"),
        "known: approval, call, code_mode, llm_loop, pipeline, ralph, team, tools_mode, or module:attribute",
    ),
    (("graph", "models:number"), "graph 'models:number' is a int, not a Graph"),
    (("graph", "--format", "gif"), "unknown format 'gif'; known: mermaid, dot, table, json, svg, png"),
    (("graph", "--format", "png"), "a PNG cannot be printed; name its file with --output FILE.png"),
    (("lint", "nowhere"), "unknown graph 'nowhere'; known: approval, call, code_mode, llm_loop"),
    (("report", "missing.log"), "missing.log: No such file or directory"),
    (("report", "models.py"), "models.py: no line of a transition or of a run's end here"),
    (("fly",), "No such command 'fly'; see `orchestrator --help`"),
]


@pytest.mark.parametrize(
    ("arguments", "said"), BAD, ids=lambda value: " ".join(value)[:80] if isinstance(value, tuple) else ""
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    cli: Cli, one_sentence: Callable[..., str], folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "index.jsonl").write_text("{}\n")
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "needy.py").write_text("import what_it_needs\n")
    (folder / "malformed.jsonl").write_text('{"messages": [\n')
    (folder / "list.json").write_text("[]")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "deep.toml").write_text("a = " + "[" * 100_000)
    (folder / "digits").mkdir()
    (folder / "digits" / "prd.json").write_text("9" * 5_000)
    (folder / "bad_schema.json").write_text('{"type": "moon"}')
    (folder / "two.jsonl").write_text(
        '{"id": "a", "messages": [{"role": "user", "content": "x"}]}\n'
        '{"id": "b", "messages": [{"role": "user", "content": "x"}]}\n'
    )
    done = cli(*arguments)
    assert said in one_sentence(done)
    assert done.code == 2


SETTINGS = [
    ({"ORCHESTRATOR_MODLE": "x"}, None, "unknown setting ORCHESTRATOR_MODLE; known: "),
    ({"ORCHESTRATOR_LIMITS__MAX_TURNS": "1"}, None, "max_turns; known: "),
    ({"ORCHESTRATOR_LOG_LEVEL": "loud"}, None, "setting log_level: "),
    ({}, "model = [", "orchestrator.toml cannot be read"),
    ({}, "modle = 'x'", "setting modle: "),
]


@pytest.mark.parametrize(("environment", "file", "said"), SETTINGS)
@pytest.mark.parametrize("command", [("run", "hi"), ("config", "show")])
def test_bad_settings_are_one_sentence(
    cli: Cli,
    one_sentence: Callable[..., str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    file: str | None,
    said: str,
    command: tuple[str, ...],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if file is not None:
        (folder / "orchestrator.toml").write_text(file)
    if command[0] == "run":
        command = (*command, "--model", "python:models:answers")
    done = cli(*command)
    assert said in one_sentence(done)
    assert done.code == 2


def test_an_error_nobody_expected_is_one_sentence_too(
    cli: Cli, one_sentence: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("orchestrator.cli.graph.named", broken)
    done = cli("graph")
    assert one_sentence(done) == (
        "orchestrator: unexpected ZeroDivisionError: two lines (`orchestrator --traceback …` shows where)"
    )
    assert done.code == 1


def test_a_traceback_is_shown_when_asked_for(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown model 'echo'"):  # Python shows it, and ends the process
        main(["--traceback", "run", "hi", "--model", "echo"])


def test_a_file_that_cannot_be_read_is_named(
    cli: Cli, one_sentence: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as nobody_can_open_this_not_even_root:
        nobody_can_open_this_not_even_root.bind("locked.jsonl")

        assert "locked.jsonl: " in one_sentence(cli("replay", "locked.jsonl"))


ENDLESS = [
    ("replay", "{zero}.json"),
    ("replay", "{zero}.jsonl"),
    (*RUN, "replay:{zero}.jsonl"),
    ("report", "{zero}.log"),
    ("backtest", "{zero}.jsonl", "--set", "max_iterations=3"),
    (*ANSWERS, "--output-schema", "{zero}.json"),
    (*ANSWERS, "--mcp", "{zero}.json"),
    ("eval", "{zero}.jsonl", "--agent", "models:unfit"),
    ("rlm", "run", "{zero}.txt", "--prompt", "what?", "--model", "python:models:answers"),
    ("pipeline", "run", "--example", "--requirements", "{zero}.toml"),
    ("ralph", "run", "--example", "--import", "{zero}.md"),
    ("ralph", "run", "x", "--example", "--answers", "{zero}.json"),
]


@pytest.mark.parametrize("arguments", ENDLESS, ids=" ".join)
def test_a_file_without_an_end_is_one_sentence(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(bounded, "LARGEST", 1_000)
    for suffix in ("json", "jsonl", "log", "txt", "toml", "md"):
        (folder / f"zero.{suffix}").symlink_to("/dev/zero")
    done = cli(*(word.replace("{zero}", "zero") for word in arguments))
    assert done.code == 2, done.err
    assert "has more than 1,000 bytes" in done.err
    assert "zero." in done.err


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_extra_names_the_install_line(folder: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nfrom orchestrator.cli import main; main(['graph'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    expected = f"orchestrator: {package} is not installed: pip install 'fsm-orchestrator[cli]'\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.parametrize(
    ("prompt", "given", "said"),
    [
        ("-", b"Hi \xff", "the prompt is no text: byte 3 is not UTF-8"),
        ("-", b" \n", "the prompt is empty; give text, or - for standard input"),
        ("", b"", "the prompt is empty"),
        (os.fsdecode(b"Hi\xff"), b"", "the prompt is no text: character 3 is not UTF-8"),
    ],
)
def test_a_prompt_that_is_no_text_is_one_sentence(
    cli: Cli,
    one_sentence: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    prompt: str,
    given: bytes,
    said: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    done = cli("run", prompt, "--model", "python:models:answers")
    assert (done.code, said in one_sentence(done)) == (2, True)


def only_outcome(cli: Cli) -> str:
    [run] = cli("runs", "list", "--json").out.splitlines()
    return str(json.loads(run)["outcome"])


def test_a_stream_that_is_closed_is_no_traceback(cli: Cli, folder: Path) -> None:
    run = f"exec {sys.executable} -W error -m orchestrator run hi --model python:models:answers <&- >&-"
    done = subprocess.run(["sh", "-c", run], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert only_outcome(cli) == "completed"


@pytest.mark.canary
def test_a_stream_that_is_full_is_no_traceback_and_no_bad_input(cli: Cli, start: Callable[..., Any]) -> None:
    with Path("/dev/full").open("w") as full:
        running = start(*ANSWERS, stdout=full)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in err) == (1, False), err
    assert only_outcome(cli) == "completed"  # what could not be shown was done all the same


AT = ("--journal", JOURNAL)
LOOKING = ("run", "hi", "--model", "python:agents:looker", "--tool", "agents:look")

READING = [
    ("runs", "list"),
    ("runs", "show", "run-1"),
    ("runs", "events", "run-1"),
    ("runs", "export", "run-1"),
    ("runs", "resume"),
    ("runs", "migrate", "--dry-run"),
]
WRITING = [
    LOOKING,
    ("runs", "resume", "run-1"),
    ("runs", "fork", "run-1"),
    ("runs", "rollback", "run-1", "--yes"),
    ("runs", "migrate", "--using", "agents:unchanged"),
    ("runs", "approve", "run-1"),
    ("runs", "reject", "run-1"),
    ("runs", "respond", "run-1", "text"),
    ("runs", "cancel", "run-1"),
    ("runs", "pause", "run-1"),
    ("runs", "erase", "run-1", "--yes"),
    ("runs", "prune", "--keep-last", "1", "--yes"),
]
every_command = pytest.mark.parametrize("command", [*READING, *WRITING], ids=" ".join)


def newer() -> None:
    db = apsw.Connection(JOURNAL)
    db.pragma("user_version", 99)
    db.close()


def damaged() -> None:
    Path(JOURNAL).write_bytes(b"x" * 10_000)


SPOILT = [
    (newer, "has version 99"),
    (damaged, "is not a SQLite database, or its first page is damaged"),
]


@every_command
@pytest.mark.parametrize(("spoil", "said"), SPOILT, ids=["newer", "damaged"])
def test_a_journal_that_cannot_be_read_is_left_as_it_is(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    command: tuple[str, ...],
    spoil: Callable[[], None],
    said: str,
) -> None:
    agents(folder)
    record(Tape("run-1").begin())
    spoil()
    before = Path(JOURNAL).read_bytes()
    done = cli(*command, *AT)
    line = one_sentence(done)
    assert said in line
    assert f"{folder}/{JOURNAL}" in line
    assert (done.code, Path(JOURNAL).read_bytes()) == (2, before)


@contextmanager
def locked() -> Iterator[None]:
    """Another program writes and does not come to an end."""
    db = apsw.Connection(JOURNAL)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


@pytest.mark.parametrize("command", [LOOKING, ("runs", "approve", "run-1")], ids=" ".join)
def test_a_journal_that_another_program_keeps_locked_is_one_sentence(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    # Not the 5 s of a process of its own, which test_runs_care waits for.
    monkeypatch.setattr(SqliteJournal, "__init__", partialmethod(SqliteJournal.__init__, busy=0.1))
    parked(folder)
    before = stored()
    with locked():
        done = cli(*command, "--json", *AT)
        line = done.err.splitlines()[-1]  # `run` has said before that another run is open
    assert done.out == ""
    assert line == (
        f"orchestrator: journal {folder}/{JOURNAL} was locked by another process for more than 0.1 s: it is busy, "
        "or frozen"
    )
    assert (done.code, stored(), inbox("run-1")) == (2, before, [])


@every_command
def test_a_network_file_system_is_refused_and_nothing_is_made(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    agents(folder)
    record(Tape("run-1").begin())
    mounts = folder / "mountinfo"
    point = str(folder).replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 / {point} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(place, "MOUNTS", mounts)
    before = Path(JOURNAL).read_bytes()
    done = cli(*command, *AT)
    assert f"journal folder {folder} is on nfs4, a network file system: choose a local disk" in one_sentence(
        done
    )
    assert (done.code, Path(JOURNAL).read_bytes()) == (2, before)
    fresh = cli(*LOOKING, "--journal", "new/journal.db")
    assert "is on nfs4" in one_sentence(fresh)
    assert (fresh.code, (folder / "new").exists()) == (2, False)


NAMING = [command for command in [*READING, *WRITING] if "run-1" in command]


@pytest.mark.parametrize("command", NAMING, ids=" ".join)
def test_an_unknown_run_is_one_sentence_that_names_those_like_it(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    parked(folder, "invoice-17")
    before = stored("invoice-17"), Path(JOURNAL).read_bytes()
    done = cli(*("invoice-71" if word == "run-1" else word for word in command), *AT)
    line = one_sentence(done)
    assert f"no run 'invoice-71' in {folder}/{JOURNAL}; like it: invoice-17; `orchestrator runs list" in line
    assert done.code == 2
    assert (stored("invoice-17"), Path(JOURNAL).read_bytes()) == before


@pytest.mark.parametrize("answer", [("approve",), ("reject",), ("respond", "text")], ids=" ".join)
def test_an_answer_to_another_digest_is_one_sentence_and_posts_nothing(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, answer: tuple[str, ...]
) -> None:
    parked(folder)
    before = stored(), Path(JOURNAL).read_bytes()
    done = cli("runs", answer[0], "run-1", *answer[1:], "--digest", "0123456789ab", *AT)
    assert (
        "the answer about call 1:0 (pay) does not count and was not posted: it is about other arguments"
        in one_sentence(done)
    )
    assert (done.code, inbox("run-1")) == (2, [])
    assert (stored(), Path(JOURNAL).read_bytes()) == before
    assert not (folder / "paid.txt").exists()


@every_command
def test_a_folder_in_place_of_the_journal_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    agents(folder)
    (folder / "place").mkdir()
    done = cli(*command, "--journal", "place")
    assert f"{folder}/place" in one_sentence(done)
    assert (done.code, list((folder / "place").iterdir())) == (2, [])


@pytest.mark.parametrize("command", [*READING, *WRITING[1:]], ids=" ".join)
def test_no_journal_is_one_sentence_and_none_is_made(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, command: tuple[str, ...]
) -> None:
    agents(folder)
    done = cli(*command)
    assert f"there is no journal {folder}/.orchestrator/journal.db: name another" in one_sentence(done)
    assert (done.code, (folder / ".orchestrator").exists()) == (2, False)


# ---- disks ----


@pytest.fixture
def disk(tmp_path: Path, absent: Callable[[str], NoReturn]) -> Iterator[Callable[[str], Path]]:
    """`disk("size=1m")` is a new folder on a disk of its own; needs root."""
    made: list[Path] = []

    def mounted(options: str) -> Path:
        if os.geteuid() != 0:
            absent("mounting needs root")
        point = tmp_path / f"disk{len(made)}"
        point.mkdir()
        command: list[str | Path] = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", point]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            absent(f"mount is refused: {done.stderr.strip()}")
        made.append(point)
        return point

    yield mounted
    for point in made:
        subprocess.run(["umount", "--lazy", point], check=True)


def test_a_folder_that_cannot_be_written_to_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, disk: Callable[[str], Path]
) -> None:
    agents(folder)
    if os.geteuid() == 0:  # whom no permission stops
        place_ = disk("ro,size=64k")
    else:
        place_ = folder / "not mine"
        place_.mkdir(mode=0o500)
    done = cli(*LOOKING, "--journal", str(place_ / JOURNAL))
    assert f"journal {place_}/{JOURNAL} cannot be created: " in one_sentence(done)
    assert (done.code, list(place_.iterdir())) == (2, [])


def test_a_disk_that_is_full_from_the_start_is_one_sentence_and_nothing_is_run(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, disk: Callable[[str], Path]
) -> None:
    agents(folder)
    small = disk("size=32k")
    done = cli(*LOOKING, "--json", "--journal", str(small / JOURNAL))
    assert "full" in one_sentence(done)
    assert done.code == 2


@pytest.mark.campaign
def test_a_disk_that_fills_up_fails_the_run_which_goes_on_when_there_is_room(
    cli: Cli, folder: Path, disk: Callable[[str], Path]
) -> None:
    agents(folder)
    (folder / "big.py").write_text(
        "from orchestrator import tool\n"
        "@tool(effect='pure', max_result_chars=2_000_000)\n"
        "def look(number: int) -> str:\n    return f'seen {number} ' + 'x' * 300_000\n"
    )
    small = disk("size=700k")
    at = ("--journal", str(small / JOURNAL))
    done = cli(*LOOKING[:-1], "big:look", "--run-id", "run-1", "--json", *at)
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert f"the disk of journal {small}/{JOURNAL} is full: free space" in done.err
    assert json.loads(done.out)["outcome"] == "failed"
    subprocess.run(["mount", "-o", "remount,size=20m", small], check=True)
    assert cli("runs", "show", "run-1", *at).code == 0
    again = cli("runs", "resume", "run-1", "--json", *at)
    assert (again.code, json.loads(again.out)["output"]) == (0, "looked 3 times")

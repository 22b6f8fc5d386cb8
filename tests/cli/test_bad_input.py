from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.errors import ConfigError
from orchestrator.files import bounded

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
        "known: approval, code_mode, llm_loop, pipeline, ralph, tools_mode, or module:attribute",
    ),
    (("graph", "models:number"), "graph 'models:number' is a int, not a Graph"),
    (("graph", "--format", "gif"), "unknown format 'gif'; known: mermaid, dot, table, json, svg, png"),
    (("graph", "--format", "png"), "a PNG cannot be printed; name its file with --output FILE.png"),
    (("lint", "nowhere"), "unknown graph 'nowhere'; known: approval, code_mode, llm_loop"),
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

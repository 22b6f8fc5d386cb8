"""Text from models, tools, providers, servers, files, journals and arguments never controls the terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cli.output import log_stream
from orchestrator.telemetry.log import writer_to
from tests.cli.conftest import Done, whole_program
from tests.cli.hostile import CONTROLS, HOSTILE, MARKS, controls, files, journal, marked
from tests.cli.test_terminal import Terminal

Start = Callable[..., subprocess.Popen[str]]
Cli = Callable[..., Done]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from commands(below, (*path, name))


ALL = dict(commands(whole_program()))

AT = ("--journal", "journal.db")
TOML = json.dumps(HOSTILE).replace("\x7f", "\\u007f")
LOOK = ("--tool", "evil:look", "--tool", "evil:fails")
SERVER = shlex.join([sys.executable, "server.py"])


def run(model: str, *more: str) -> tuple[str, ...]:
    return ("run", "ask", "--model", f"python:evil:{model}", *LOOK, *more)


CONTENT: dict[str, tuple[tuple[str, ...], ...]] = {
    "run": (
        *(
            run(name)
            for name in ("text", "refuses", "crashes", "result", "unknown_tool", "tool_error", "factory")
        ),
        *(run(name, "--json") for name in ("text", "refuses", "crashes", "result", "unknown_tool")),
        *(run(name, "--stream") for name in ("text", "refuses", "result", "unknown_tool")),
        *(run(name, "--stream", "--json") for name in ("text", "refuses")),
        run("text", "--log", f"no/{HOSTILE}"),
        run("text", "--run-id", HOSTILE),
        run("text", "--mcp", f"{SERVER} error"),
        run("text", "--mcp", f"{SERVER} name"),
        run("text", "--mcp", f"{SERVER}"),
        run("text", "--mcp", HOSTILE),
    ),
    "runs compare": (("runs", "compare", "failed", "asks", *AT), ("runs", "compare", "failed", HOSTILE, *AT)),
    "replay": (
        ("replay", "talks.jsonl"),
        ("replay", "talks.jsonl", "--json"),
        ("replay", "talks.jsonl", "--live", "--speed", "0"),
    ),
    "chat": tuple(
        ("chat", "--model", f"python:evil:{name}", *LOOK)
        for name in ("text", "refuses", "result", "unknown_tool")
    ),
    "eval": tuple(
        ("eval", file, "--agent", "evil:support", "--judge", "evil:judge", *AT, *more)
        for file in ("cases.jsonl", "names.jsonl")
        for more in ((), ("--json",))
    ),
    "docs": (("docs",), ("docs", HOSTILE)),
    "trust": (
        ("trust", "spec.toml"),
        ("trust", "spec.toml", "--json"),
        ("trust", HOSTILE),
        ("trust", "--mcp", f"{SERVER} name"),
        ("trust", "--mcp", f"{SERVER} name", "--json"),
        ("trust", "--mcp", HOSTILE),
        ("trust", "--list"),
        ("trust", "--revoke", "spec.toml"),
    ),
    "report": (("report", "run.log"), ("report", "run.log", "--json"), ("report", HOSTILE)),
    "doctor": (("doctor", *AT), ("doctor", *AT, "--json")),
    "pipeline run": (
        ("pipeline", "run", "spec.toml"),
        ("pipeline", "run", "spec.toml", "--json"),
        ("pipeline", "run", "raises.toml"),
    ),
    "pipeline report": (("pipeline", "report", "foreign", *AT),),
    "pipeline resume": (("pipeline", "resume", "foreign", *AT),),
    "ralph tasks": (("ralph", "tasks", "tasks.md"), ("ralph", "tasks", "tasks.md", "--json")),
    "ralph status": (("ralph", "status", "foreign", *AT),),
    "ralph resume": (("ralph", "resume", "foreign", *AT),),
    "ralph answer": (("ralph", "answer", "foreign", *AT),),
    "rlm run": (
        ("rlm", "run", "book.txt", "--prompt", HOSTILE, "--model", "python:evil:code"),
        ("rlm", "run", "book.txt", "--prompt", HOSTILE, "--model", "python:evil:code", "--json"),
    ),
    "approval submit": (("approval", "submit", HOSTILE, "--plan", "plan.json"),),
    "runs list": (("runs", "list", *AT), ("runs", "list", *AT, "--json"), ("runs", "list", "--all", *AT)),
    "runs show": tuple(
        ("runs", "show", name, *more, *AT)
        for name in ("failed", "asks", "decided", "foreign")
        for more in ((), ("--full",), ("--json",))
    ),
    "runs events": tuple(
        ("runs", "events", name, *more, *AT)
        for name in ("failed", "asks", "decided", "foreign")
        for more in ((), ("--content",), ("--json", "--content"))
    ),
    "runs export": (("runs", "export", "failed", *AT), ("runs", "export", "failed", "--content", *AT)),
    "runs approve": (("runs", "approve", "short", "--by", HOSTILE, "--why", HOSTILE, *AT),),
    "runs reject": (("runs", "reject", "asks", "--by", HOSTILE, "--why", HOSTILE, *AT),),
    "runs respond": (("runs", "respond", "short", HOSTILE, "--by", HOSTILE, *AT, "--json"),),
    "runs cancel": (("runs", "cancel", "asks", "--by", HOSTILE, "--why", HOSTILE, *AT),),
    "runs pause": (("runs", "pause", "asks", "--by", HOSTILE, "--why", HOSTILE, *AT),),
    "runs resume": (("runs", "resume", *AT), ("runs", "resume", "foreign", *AT)),
    "runs fork": (("runs", "fork", "foreign", *AT),),
    "runs replay": tuple(("runs", "replay", name, *AT) for name in ("failed", "asks", "decided", "foreign")),
    "runs migrate": (("runs", "migrate", "--dry-run", *AT), ("runs", "migrate", "foreign", *AT)),
    "operate status": (("operate", "status", *AT),),
}
"""Command -> command lines on files, models, servers and journals full of hostile text; some of each show it."""

LOOKED = ("diff", "show", "status", "approve", "execute")
APPROVAL = ("acknowledge", "cancel", "changes", "pause", "reject", "resume", "retry", "rollback")
QUIET = {
    "add",
    "backtest",
    *(f"approval {name}" for name in (*APPROVAL, *LOOKED)),
    "approval wait",
    "config show",
    "console",
    "graph",
    "init",
    "lint",
    "mcp serve",
    "metrics",
    "operate",
    "ops",
    "ralph doctor",
    "ralph run",
    "ralph tell",
    "rlm isolation",
    "rlm resume",
    "runs backup",
    "runs erase",
    "runs prune",
    "runs restore",
    "runs rollback",
    "submit",
    "worker",
}
"""Commands and groups whose hostile text comes from arguments and settings, which every command is tried with."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of the hostile folders."""
    place = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        journal()
    return place / "journal.db"


@pytest.fixture
def hostile(
    folder: Path, recorded: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """Run the command line in this process, in a hostile folder, and read what reached both descriptors."""
    files(folder)
    shutil.copy2(recorded, folder)
    monkeypatch.syspath_prepend(str(folder))

    def ran(*arguments: str) -> Done:
        for name in ("evil", HOSTILE):
            sys.modules.pop(name, None)
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"ask\n{HOSTILE}\n"))
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        captured = capfd.readouterr()
        return Done(end.value.code if isinstance(end.value.code, int) else -1, captured.out, captured.err)

    return ran


def test_every_command_has_a_case_with_hostile_text() -> None:
    known = {" ".join(path) for path in ALL}
    quiet = {name for name in known - set(CONTENT) if name in QUIET or name.split()[0] in QUIET}
    assert known == set(CONTENT) | quiet
    assert all(any(name == one or one.startswith(f"{name} ") for one in known) for name in QUIET)


@pytest.mark.parametrize("name", CONTENT)
def test_hostile_content_is_shown_and_controls_nothing(hostile: Cli, name: str) -> None:
    seen = 0
    for arguments in CONTENT[name]:
        assert " ".join(arguments).startswith(name)
        done = hostile(*arguments)
        assert controls(done.out + done.err) == [], arguments
        seen += marked(done.out + done.err)
    assert seen, "no hostile text arrived: the case shows nothing"


def arguments_of(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    """Return command lines with hostile text as an unknown option, each argument, and the value of each option."""
    needed: list[str] = []
    for one in command.params:
        if one.param_type_name == "argument" and one.required:
            needed.append(HOSTILE)
        elif one.required:
            needed += [one.opts[0], HOSTILE]
    yield (*path, *needed)
    yield (*path, f"--{HOSTILE}")
    yield (*path, *needed, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    for one in command.params:
        if one.param_type_name == "option" and not getattr(one, "is_flag", False):
            yield (*path, *needed, one.opts[0], HOSTILE)


@pytest.mark.canary("run", "runs show", "approval submit", "graph")
@pytest.mark.campaign
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_hostile_argument_controls_nothing(hostile: Cli, path: tuple[str, ...]) -> None:
    seen = 0
    for arguments in arguments_of(path, ALL[path]):
        done = hostile(*arguments)
        assert controls(done.out + done.err) == [], arguments
        seen += marked(done.err + done.out)
    assert seen


@pytest.mark.parametrize(
    "text", [f"{HOSTILE} = [", f"model = {TOML}\n", f"[limits]\n{TOML} = 1\n", f"{TOML} = 1\n"]
)
@pytest.mark.parametrize("command", [("run", "ask"), ("config", "show"), ("runs", "list"), ("doctor",)])
def test_a_hostile_configuration_file_controls_nothing(
    hostile: Cli, folder: Path, text: str, command: tuple[str, ...]
) -> None:
    (folder / "orchestrator.toml").write_text(text)
    done = hostile(*command)
    assert controls(done.out + done.err) == []
    assert command != ("config", "show") or marked(done.out + done.err) or text.startswith(HOSTILE)


def test_a_plan_that_hides_text_in_a_file_is_shown_with_it(hostile: Cli) -> None:
    assert hostile("approval", "submit", "Keep a note.", "--plan", "diff.json").code == 0
    for name in (*LOOKED, "status"):
        for more in ((), ("--json",)):
            done = hostile("approval", name, *more)
            assert controls(done.out + done.err) == []
            assert name != "diff" or marked(done.out)


def test_json_of_hostile_text_stays_json(hostile: Cli) -> None:
    done = hostile(*run("text", "--json"))
    assert json.loads(done.out)["output"].startswith(HOSTILE)
    assert "\\u007f" in done.out


# ---- as a process: tracebacks, warnings, logging, and a terminal ----


@pytest.mark.canary
def test_a_traceback_controls_nothing(folder: Path, start: Start) -> None:
    files(folder)
    process = start("--traceback", *run("factory"))
    out, err = process.communicate(timeout=60)
    assert "Traceback" in err
    assert marked(err)
    assert controls(out + err) == []


PASSES = {
    "print": "print(H)",
    "standard error": "import sys; sys.stderr.write(H)",
    "logging": "import logging; logging.getLogger('x').warning(H)",
    "warnings": "import warnings; warnings.simplefilter('always'); warnings.warn(H)",
    "a thread": "import threading; t = threading.Thread(target=boom); t.start(); t.join()",
    "a destructor": "class D:\n    def __del__(self): raise ValueError(H)\nD()",
    "click": "import typer; typer.echo(H)",
    "bytes": "import sys; sys.stdout.buffer.write(H.encode() + b'\\xff'); sys.stdout.buffer.flush()",
}
"""Ways past the functions of the command line: code of tools and libraries uses them."""


@pytest.mark.parametrize("way", PASSES)
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_code_of_others_passes_the_same_door(folder: Path, start: Start, way: str, terminal: bool) -> None:
    indented = PASSES[way].replace("\n", "\n    ")
    head = f"H = {HOSTILE!r}\n\ndef boom():\n    raise ValueError(H)\n\n"
    (folder / "evil.py").write_text(f"{head}def model(request):\n    {indented}\n    return 'done'\n")
    arguments = ("run", "ask", "--model", "python:evil:model")
    if terminal:
        screen = Terminal(start, *arguments)
        _, err = screen.end()
        shown = screen.raw + err
    else:
        out, err = start(*arguments).communicate(timeout=60)
        shown = out + err
    assert controls(shown, terminal=terminal) == []
    assert marked("".join(shown.split()))


def test_log_lines_on_a_terminal_are_escaped_and_in_a_file_exact(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        stream: Any = log_stream(terminal)
        writer_to(stream)(HOSTILE.encode() + b"\n")
        shown = os.read(ours, 4_096).decode()
    os.close(ours)
    assert controls(shown, terminal=True) == []
    assert marked(shown)
    with (tmp_path / "run.log").open("wb") as file:
        assert log_stream(file) is file


ON_A_TERMINAL = {
    "text": run("text"),
    "result": run("result"),
    "unknown tool": run("unknown_tool"),
    "provider error": run("refuses"),
    "stream": run("text", "--stream"),
    "stream error": run("refuses", "--stream"),
    "pipeline": ("pipeline", "run", "spec.toml"),
    "rlm": ("rlm", "run", "book.txt", "--prompt", HOSTILE, "--model", "python:evil:code"),
    "replay": ("replay", "talks.jsonl", "--live", "--speed", "0"),
    "show": ("runs", "show", "failed", *AT),
    "question": ("runs", "show", "asks", "--full", *AT),
    "events": ("runs", "events", "failed", "--content", *AT),
    "doctor": ("doctor", *AT),
    "tasks": ("ralph", "tasks", "tasks.md"),
    "bad option": ("runs", "list", f"--{HOSTILE}"),
}


@pytest.mark.parametrize("case", ON_A_TERMINAL)
def test_on_a_terminal_only_our_own_sequences_are_left(
    folder: Path, recorded: Path, start: Start, case: str
) -> None:
    files(folder)
    shutil.copy2(recorded, folder)
    terminal = Terminal(start, *ON_A_TERMINAL[case])
    _, err = terminal.end()
    assert controls(terminal.raw, terminal=True) == []
    assert controls(err) == []
    assert marked(terminal.raw + err)


def test_the_check_finds_what_it_is_about() -> None:
    assert len(controls(HOSTILE)) == len(CONTROLS.findall(HOSTILE)) == 18
    assert controls(f"{HOSTILE}\x1b[1m\r\n", terminal=True) == controls(HOSTILE)
    assert not marked(HOSTILE)
    assert MARKS

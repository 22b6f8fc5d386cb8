from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import orchestrator
from orchestrator.cli import app
from orchestrator.cli.app import COMPLETION
from orchestrator.cli.lazy_group import LateConversion, LazyGroup
from orchestrator.providers.mcp.options import SERVER_OPTIONS

Cli = Callable[..., Any]

COMMANDS = (
    "run",
    "chat",
    "worker",
    "submit",
    "replay",
    "backtest",
    "eval",
    "graph",
    "lint",
    "report",
    "doctor",
    "console",
    "docs",
    "init",
    "trust",
    "add",
    "pipeline",
    "ralph",
    "rlm",
    "approval",
    "runs",
    "operate",
    "ops",
    "metrics",
    "mcp",
    "config",
)


def test_help_names_every_command(cli: Cli) -> None:
    said = cli("--help")
    assert re.findall(r"^  ([a-z]+)  +[A-Z]", said.out, re.MULTILINE) == list(COMMANDS)
    assert (said.code, said.err) == (0, "")
    assert cli() == said
    assert cli("-h") == said


@pytest.mark.parametrize("command", [*((name,) for name in COMMANDS), ("config", "show")])
def test_each_command_has_help(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli(*command, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: orchestrator {' '.join(command)}")
    assert max(map(len, done.out.splitlines())) <= 100


def test_the_help_of_run_names_every_kind_of_model_and_every_option_of_an_mcp_server(cli: Cli) -> None:
    said = " ".join(cli("run", "--help").out.split())
    kinds = ("openai:", "openai-responses:", "anthropic:", "pydantic-ai:", "python:", "replay:", " demo ")
    missing = [one for one in kinds if one not in said]
    assert (missing, [name for name in SERVER_OPTIONS if f" {name}=" not in said]) == ([], [])


def test_the_version_is_printed(cli: Cli) -> None:
    done = cli("--version")
    assert (done.code, done.out) == (0, f"orchestrator {orchestrator.__version__}\n")


LIGHT = {
    *("cli", "cli.app", "cli.exit", "cli.lazy_group", "cli.output"),
    *("errors", "version", "kernel.outcome", "telemetry.escape"),
}
"""What the list of commands needs; the module of a command is imported when it is typed."""


def test_help_imports_nothing_that_a_command_needs_to_run(folder: Path) -> None:
    code = (
        "import sys\nfrom orchestrator.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: print(*sorted(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert not loaded & {"pydantic", "rich", "asyncio", "transitions", "structlog", "tenacity"}
    packages = {name.rpartition(".")[0] for name in LIGHT if "." in name}
    ours = {name.removeprefix("orchestrator.") for name in loaded if name.startswith("orchestrator.")}
    assert ours - packages <= LIGHT


def test_a_command_that_keeps_no_log_loads_none(folder: Path) -> None:
    code = (
        "import sys\nfrom orchestrator.cli import main\n"
        "try: main(['run', 'hi', '--model', 'python:models:model', '--json'])\n"
        "except SystemExit as end: print(end.code, *sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    status, *loaded = done.stderr.split()
    assert (status, "orchestrator.telemetry.log" in loaded, "structlog" in loaded) == ("0", True, False)


VALUES = ("", "text", "é", "\udcff", "3", "-1", "none", "true", "/no/such/file", "postgresql://host/db")


def test_a_value_that_is_not_converted_is_the_one_that_typer_returns() -> None:
    """The default and several texts, for each parameter of each command."""
    several = 0
    for command in _commands(app.program()):
        context = command.context_class(command)
        for parameter in command.get_params(context):
            values = (*VALUES, *(parameter.type_descriptor.choices or ()))
            texts = [(value,) if parameter.multiple or parameter.nargs == -1 else value for value in values]
            default = parameter.get_default(context)
            for source, value in (("DEFAULT", default), *(("COMMANDLINE", text) for text in texts)):
                context.set_parameter_source(parameter.name, SimpleNamespace(name=source))
                ours = parameter.get_runtime_param()
                assert isinstance(ours, LateConversion)
                read = [_read(one, value, parameter, context) for one in (ours, ours.conversion())]
                assert read[0] == read[1], (command.name, parameter.name, source, value)
                several += 1
    assert several > 1_000


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for name, one in getattr(command, "commands", {}).items():
        yield from _commands(command.load(name) if isinstance(command, LazyGroup) else one)


def _read(conversion: Any, value: object, parameter: Any, context: Any) -> object:
    """Return the value that the command receives, or the text of the error; nothing is () or None or []."""
    try:
        read = conversion.coerce(value, param=parameter, ctx=context)
        return None if read in ((), []) else (type(read), read)
    except Exception as error:
        if (said := getattr(error, "format_message", None)) is None:
            raise
        return said()


def test_a_command_changes_nothing_for_the_next_one_of_the_same_process(cli: Cli) -> None:
    first, help_ = cli("graph"), cli("--help")
    built = app.program().commands["graph"]
    assert cli("graph", "--format", "table").out != first.out
    assert cli("graph", "--format", "picture").code == 2
    assert cli("no-such-command").code == 2
    assert (cli("graph"), cli("--help", "graph")) == (first, help_)
    assert app.program().commands["graph"] is built


def test_the_list_of_a_group_has_the_first_sentence_of_each_command() -> None:
    groups = [app.program()]
    for group in groups:
        for name, entry in group.table.items():
            command = group.load(name)
            assert command.get_short_help_str(1_000) == entry.line
            if isinstance(command, LazyGroup):
                groups.append(command)


@pytest.mark.canary
def test_the_module_runs_like_the_script(program: Cli) -> None:
    done = program("graph", "--format", "table")
    assert done.out.startswith("from ")
    assert (done.code, done.err) == (0, "")


Process = Callable[..., Any]


def completed_by_bash(folder: Path, *words: str) -> Sequence[str]:
    """What bash offers for the last word, with the function that the script defines."""
    script = """
        orchestrator() { "$PYTHON" -m orchestrator "$@"; }
        export -f orchestrator
        eval "$(_ORCHESTRATOR_COMPLETE=source_bash "$PYTHON" -m orchestrator)"
        env() { command env "${@:1:$#-1}" "$PYTHON" -m orchestrator; }
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _orchestrator_completion orchestrator
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["env", f"PYTHON={sys.executable}", "bash", "-ec", script, "bash", "orchestrator", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.campaign
@pytest.mark.canary
def test_bash_completes_a_command_of_a_group(folder: Path) -> None:
    assert completed_by_bash(folder, "runs", "app") == ["approve"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [("ru", ["run", "runs"]), ("runs app", ["approve"]), ("chat --con", ["--conversation"])],
)
def test_commands_their_groups_and_their_options_are_completed(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: str, offered: Sequence[str]
) -> None:
    line = f"orchestrator {words}"
    for name, value in (
        (COMPLETION, "complete_bash"),
        ("COMP_WORDS", line),
        ("COMP_CWORD", len(line.split()) - 1),
    ):
        monkeypatch.setenv(name, str(value))
    assert cli().out.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_names_the_command(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv(COMPLETION, f"source_{shell}")
    done = cli()
    assert (done.code, done.err) == (0, "")
    assert "orchestrator" in done.out
    assert COMPLETION in done.out


def test_a_wrong_request_of_a_shell_is_refused(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPLETION, "nonsense")
    assert cli().code == 1


WITHOUT = """
import sys
for name in ("typer", "rich", "prompt_toolkit"):
    sys.modules[name] = None
from orchestrator.cli import main
main(sys.argv[1:])
"""


def test_without_the_extra_the_version_is_printed_and_the_rest_says_what_to_install(folder: Path) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-c", WITHOUT, *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert run("--version") == (0, f"orchestrator {orchestrator.__version__}\n", "")
    for arguments in ((), ("run", "hi"), ("--help",)):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err == "orchestrator: typer is not installed: pip install 'fsm-orchestrator[cli]'\n"

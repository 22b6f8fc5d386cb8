"""Completion in the shell, and what works without the extra `cli`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.cli.app import COMPLETION

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

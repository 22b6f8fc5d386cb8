"""Misspelt models, tools, commands and guides on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.app import COMMANDS, program
from orchestrator.cli.docs import GUIDES, read_guide

Cli = Callable[..., Any]
ASK = ("run", "Hi.", "--model")

CASES = {
    "a model of OpenAI without its vendor": ((*ASK, "gpt-5-mini"), "did you mean 'openai:gpt-5-mini'?"),
    "a model of Anthropic without its vendor": (
        (*ASK, "claude-opus-4"),
        "did you mean 'anthropic:claude-opus-4'?",
    ),
    "a misspelt vendor": ((*ASK, "opnai:gpt-5-mini"), "did you mean 'openai:gpt-5-mini'?"),
    "a vendor in capitals": ((*ASK, "Anthropic:claude-opus-4"), "did you mean 'anthropic:claude-opus-4'?"),
    "a module without python:": ((*ASK, "weather:model"), "did you mean 'python:weather:model'?"),
    "an attribute of a module": (
        (*ASK, "python:weather:modle"),
        "weather has no 'modle'; did you mean 'model'?",
    ),
    "the module of a tool": (
        (*ASK, "python:weather:model", "--tool", "wether:weather"),
        "there is no module 'wether' in the working directory or among the installed packages; did you mean 'weather'?",
    ),
    "the function of a tool": (
        (*ASK, "python:weather:model", "--tool", "weather:wether"),
        "weather has no 'wether'; did you mean 'weather'?",
    ),
    "a command of a group": (("resume", "r1"), "No such command 'resume': it is `orchestrator runs resume`"),
    "another one": (("approve", "r1"), "No such command 'approve': it is `orchestrator runs approve`"),
    "a command": (("rum", "Hi."), "No such command 'rum'. Did you mean"),
    "a guide": (("docs", "jurnal"), "no guide 'jurnal'; did you mean 'journal'?"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_misspelt_name_is_refused_by_a_sentence_with_the_right_one(
    case: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather.py").write_text("def weather(): ...\nclass model:\n    complete = print\n")
    monkeypatch.chdir(tmp_path)
    line, sentence = CASES[case]
    done = cli(*line)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert sentence in done.err
    assert not list(tmp_path.glob(".orchestrator"))


def test_each_command_of_a_group_is_found_from_its_name_alone() -> None:
    commands: Any = program()
    for group in COMMANDS:
        for name in getattr(commands.load(group), "commands", {}):
            assert name in COMMANDS or commands.elsewhere(name).endswith(f" {name}")


@pytest.mark.parametrize("guide", [one for one in GUIDES if one.folder], ids=lambda one: one.folder)
def test_the_name_of_a_folder_is_a_name_of_its_guide(guide: Any) -> None:
    taken = {one.topic for one in GUIDES}
    assert guide.folder in taken or read_guide(guide.folder) == read_guide(guide.topic)

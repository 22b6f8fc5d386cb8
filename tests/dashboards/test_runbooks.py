"""Runbooks: one for each alert, with fixed headings, and commands and log keys that exist."""

from __future__ import annotations

import json
import re
import shlex
from importlib.resources import files

import pytest
import typer

from orchestrator.cli import main
from orchestrator.cli.app import app
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.pack import shipped
from orchestrator.ops.rule import Profile, said_by
from tests.dashboards.lint import runbook, runbook_queries
from tests.dashboards.monitoring import ROOT

HEADINGS = ["Meaning", "Impact", "Confirm", "Likely causes", "Mitigate", "Fix", "Escalate"]
SCHEMA = json.loads((files("orchestrator.telemetry") / "log_schema.json").read_text())
NO_ORDER = {"OrchestratorBudgetHeadroomLow"}
COMMAND = typer.main.get_command(app)


def mitigations(name: str) -> list[str]:
    section = runbook(name).partition("## Mitigate")[2].partition("## Fix")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line.partition("  # ")[0].strip() for line in block.splitlines()]


def every_command() -> list[str]:
    """Return the commands of all runbooks, their arguments left out: `runs show`."""
    found = set()
    for name in NAMES:
        inline = re.findall(r"`(orchestrator [a-z][^`]*)`", runbook(name))
        for line in (*mitigations(name), *inline):
            words = shlex.split(line)
            assert words[0] == "orchestrator", line
            found.add(" ".join(_path(words[1:])))
    return sorted(found)


def _path(words: list[str]) -> list[str]:
    """Return the words that lead to a command. Raises KeyError where there is none."""
    command, path = COMMAND, []
    for word in words:
        if not hasattr(command, "commands"):
            break
        command = command.commands[word]
        path.append(word)
    return path


def test_every_alert_has_its_runbook_and_no_runbook_is_left_over() -> None:
    there = {file.name for file in (files("orchestrator.ops") / "files" / "runbooks").iterdir()}
    assert there == {f"{name}.md" for name in NAMES}
    for alert in ALERTS:
        address = said_by(alert, Profile())["runbook_url"]
        assert (ROOT / "dashboards" / address).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_has_the_fixed_headings(name: str) -> None:
    text = runbook(name)
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert len(runbook_queries(name)) == 3
    assert text.count("jq -c '") == 1
    assert mitigations(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_asks_the_log_for_keys_and_messages_that_exist(name: str) -> None:
    (program,) = re.findall(r"jq -c '(.+)' app\.log", runbook(name))
    keys = set(re.findall(r"\.([a-z_]+)", re.sub(r'"[^"]*"', "", program)))
    (shown,) = re.findall(r"\{(.+)\}", program)
    keys |= {key.strip() for key in shown.split(",")}
    assert keys <= SCHEMA["properties"].keys()
    kinds = ("is_run_line", "is_process_line")
    ours = {name for kind in kinds for name in SCHEMA["$defs"][kind]["properties"]["msg"]["enum"]}
    assert set(re.findall(r'\.msg == "([^"]+)"', program)) <= ours


@pytest.mark.parametrize("name", NAMES)
def test_what_a_runbook_says_to_do_can_be_parsed(name: str) -> None:
    for line in mitigations(name):
        words = shlex.split(line)[1:]
        context = COMMAND.make_context("orchestrator", words)
        command = COMMAND
        rest = [*context._protected_args, *context.args]
        while hasattr(command, "commands"):
            command = command.commands[rest[0]]
            context = command.make_context(rest[0], rest[1:], parent=context)
            rest = [*getattr(context, "_protected_args", ()), *context.args]


@pytest.mark.parametrize("command", every_command())
def test_a_command_of_a_runbook_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    assert said.out.startswith(f"Usage: orchestrator {command}")


def test_the_alertmanager_example_speaks_of_alerts_that_exist() -> None:
    named = set(re.findall(r"Orchestrator[A-Za-z]+", shipped("alertmanager/example.yml")))
    assert named <= set(NAMES)

"""Runbooks: one for each alert, with fixed headings; their commands, log lines and keys exist."""

from __future__ import annotations

import io
import json
import re
import shlex
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cli.docs import read_guide
from orchestrator.errors import LLMError
from orchestrator.kernel.fact import (
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    OperationAttempt,
    RunCompleted,
    RunParked,
    RunStarted,
    ToolExecution,
    WorkAbandoned,
)
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.pack import shipped
from orchestrator.ops.rule import Profile, said_by
from orchestrator.telemetry.log import TransitionLog
from orchestrator_guards import Verdict
from tests.cli.conftest import whole_program
from tests.dashboards.lint import runbook, runbook_queries
from tests.dashboards.monitoring import ROOT
from tests.derived import HINT, alerts_table
from tests.telemetry.test_log import edge

HEADINGS = ["Meaning", "Impact", "Confirm", "Likely causes", "Mitigate", "Fix", "Escalate"]
SCHEMA = json.loads((files("orchestrator.telemetry") / "log_schema.json").read_text())
NO_ORDER = {"OrchestratorBudgetHeadroomLow"}
SHARED_SLOTS = {"OrchestratorQueueWaitHigh"}
"""Alerts whose guilty run may be of another agent of the engine."""
COMMAND = whole_program()

_ERROR = LLMError("503", kind="server_error")
_USED_UP = Verdict(False, "iterations", 5, 5)
_TOTALS = {"tokens_in": 10, "tokens_out": 5, "cost": 0.25, "budget_used": {"iterations": 1.0}}
FACTS: tuple[Fact, ...] = (
    RunStarted("loop", "r1", 1.0),
    RunStarted("loop", "r2", 1.0, "resumed"),
    edge(),
    EventFailed("loop", "r1", "think", "go", "callback_error", 2.0, 1, "enter_think", _ERROR),
    RunCompleted("loop", "r1", "done", "failed", "llm_error", 9.0, 8.5, 7, 3, _TOTALS, _ERROR, _USED_UP),
    RunParked("loop", "r1", "ask", "approval", 3.0),
    GuardEvaluated("loop", "r1", "act", "again", "iterations", "error", 0, 0),
    BudgetChecked("loop", "r1", "act", 5, [_USED_UP]),
    OperationAttempt("loop", "r1", "llm", 1, "retry", "rate_limited", 0.5),
    OperationAttempt("loop", "r1", "llm", 3, "exhausted", "timeout"),
    LLMCall("loop", "r1", "think", 1, "gpt", "timeout", 60.0),
    ToolExecution("loop", "r1", 1, 0, "search", "error", 0.0),
    WorkAbandoned("loop", "r1", "act", "tool", "search", 3.0),
    JournalWrite("loop", "r1", "sqlite", "append", 3, 0.2, "full", "/srv/journal.db"),
)
"""A fact for each line that a runbook asks for, with everything that a line may have."""
DEBUG_IF_OK = ("llm.request", "tool.call")
"""Lines that a log at its default level has of failures only."""


def mitigations(name: str) -> list[str]:
    section = runbook(name).partition("## Mitigate")[2].partition("## Fix")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line.partition("  # ")[0].strip() for line in block.splitlines()]


def inline_commands(text: str) -> list[str]:
    return re.findall(r"`(orchestrator [a-z][^`]*)`", text.replace("\n", " "))


TEXTS = (read_guide("operations"), *map(runbook, NAMES))
MITIGATIONS = sorted({line for name in NAMES for line in mitigations(name)})
INLINE = sorted({line for text in TEXTS for line in inline_commands(text)})


def every_command() -> list[str]:
    """Return the commands of all runbooks and of the guide, their arguments left out: `runs show`."""
    found = set()
    for line in (*MITIGATIONS, *INLINE):
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


def test_the_operations_guide_lists_every_alert() -> None:
    assert f"<!-- alerts -->\n{alerts_table()}<!-- /alerts -->" in read_guide("operations"), HINT


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


@cache
def info_lines() -> dict[str, frozenset[str]]:
    """Return the keys of each message that a log at its default level has."""
    stream = io.BytesIO()
    log = TransitionLog(stream)
    for fact in FACTS:
        log.observe(fact)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return {line["msg"]: frozenset(line) for line in lines} | process_lines()


def process_lines() -> dict[str, frozenset[str]]:
    """Return the keys that the schema requires of the lines of a process, and of a line that no fact makes."""
    required = {
        rule["if"]["properties"]["msg"]["const"]: rule["then"]["required"]
        for rule in SCHEMA["allOf"]
        if "const" in rule["if"].get("properties", {}).get("msg", {})
    }
    kinds = SCHEMA["$defs"]["is_process_line"]["properties"]["msg"]["enum"]
    kinds = [*kinds, "cost.unknown"]
    return {kind: frozenset((*SCHEMA["required"], *required.get(kind, ()))) for kind in kinds}


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_that_a_runbook_asks_for_have_its_keys_at_the_default_level(name: str) -> None:
    (program,) = re.findall(r"jq -c '(.+)' app\.log", runbook(name))
    condition, shown = re.fullmatch(r"select\((.+)\) \| \{(.+)\}", program).groups()  # type: ignore[union-attr]
    keys = {*re.findall(r"\.([a-z_]+)", re.sub(r'"[^"]*"', "", condition)), *shown.split(", ")}
    lines = info_lines()
    asked = re.findall(r'\.msg == "([^"]+)"', condition)
    assert keys <= frozenset().union(*(lines[one] for one in asked or lines))
    if set(asked) & set(DEBUG_IF_OK):
        assert '.outcome != "ok"' in condition or '.tool == "_unregistered"' in condition


@pytest.mark.parametrize("name", NAMES)
def test_the_first_command_of_a_runbook_finds_the_run(name: str) -> None:
    first, *_ = mitigations(name)
    assert first.startswith("orchestrator runs list ")
    assert "--sort " in first


@pytest.mark.parametrize("name", NAMES)
def test_the_first_command_of_a_runbook_uses_the_labels_of_its_alert(name: str) -> None:
    said = " ".join(one.summary + one.description for one in ALERTS if one.full_name == name)
    labels = {label.upper() for label in re.findall(r"\$labels\.([a-z_]+)", said)}
    words = {word for word in mitigations(name)[0].split() if word.isupper()}
    assert words <= labels
    assert "AGENT" in words or "AGENT" not in labels or name in SHARED_SLOTS


@pytest.mark.parametrize("line", MITIGATIONS)
def test_a_command_line_of_a_runbook_can_be_parsed(line: str) -> None:
    parse(shlex.split(line)[1:])


@pytest.mark.parametrize("line", INLINE)
def test_a_command_line_inside_of_a_sentence_can_be_parsed(line: str) -> None:
    words = shlex.split(line)[1:]
    if words != (name := _path(words)) and words != [*name, "--help"]:  # more than the name of a command
        parse(words)


@pytest.mark.parametrize("line", ["runs show", "runs show RUN --why x", "runs list --status"])
def test_a_command_line_that_is_wrong_is_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"Missing parameter|No such option|requires an argument"):
        parse(line.split())
    with pytest.raises(KeyError):
        parse(["runs", "stop", "RUN"])


def parse(words: list[str]) -> None:
    """Parse a command line. Raises KeyError for an unknown command, and the parser's error for other faults."""
    context = COMMAND.make_context("orchestrator", words)
    command: Any = COMMAND
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

"""`orchestrator eval`: the report, its files and exit codes; interruption; hostile text; bad input."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse

import pytest

from orchestrator.cli.exit import Exit

Cli = Callable[..., Any]
JOURNAL = "journal.db"
AT = ("--agent", "agents:support", "--journal", JOURNAL)

AGENTS = '''
import asyncio
import pathlib

from orchestrator import Agent, MemoryJournal, Response, ToolCall, Usage, tool
from orchestrator.pipeline import Pipeline
from orchestrator.providers.scripted import FunctionLLM


@tool(effect="irreversible", approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


async def answer(request):
    said = request.messages[-1]
    with open("asked", "a") as file:
        file.write(f"{said.text}\\n")
    if said.text == "slow" and not pathlib.Path("fast").exists():
        await asyncio.sleep(600)
    if said.role == "tool":
        return Response(f"So: {said.content}", usage=Usage(90, 10, cost=0.25))
    if "refund" in said.text:
        return Response(None, (ToolCall("1", "refund", '{"order": 7}'),), usage=Usage(90, 10, cost=0.25))
    if said.text == "hostile":
        return "\\x1b[31mred\\x1b[0m \\u202egnp\\x07"
    told = pathlib.Path("answer")
    return Response(told.read_text() if told.exists() else "4", usage=Usage(90, 10, cost=0.25))


def support(journal):
    return Agent(FunctionLLM(answer), name="support", tools=[refund], journal=journal, observers=())


def logging(journal):
    return Agent(FunctionLLM(answer), name="support", tools=[refund], journal=journal)


def elsewhere(journal):
    return Agent(FunctionLLM(answer), name="support", journal=MemoryJournal(), observers=())


def nothing(journal):
    return "no agent"


def polite(run):
    return 0.25 if run.case.name == "sum" else True


async def broken(run):
    raise ValueError("no verdict\\nhere")
'''

SET = """
- name: sum
  input: 2+2
  tags: [math]
  expect: {output: "4"}
- name: pays
  input: refund 7
  answers: {refund: approve}
  expect: {tools: {called: [{tool: refund, arguments: {order: 7}}]}}
"""


@pytest.fixture
def cases(folder: Path) -> Path:
    (folder / "agents.py").write_text(AGENTS)
    (folder / "shop.yaml").write_text(SET)
    return folder / "shop.yaml"


def rows(out: str) -> dict[str, list[str]]:
    """Case -> cells of its row."""
    lines = [line.split() for line in out.splitlines() if line.startswith("  ") and "/" in line]
    return {cells[1]: cells for cells in lines}


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def test_the_report_is_a_table_with_totals_and_compares_with_the_last_evaluation(
    cli: Cli, cases: Path
) -> None:
    first = cli("eval", "shop.yaml", *AT)
    assert (first.code, first.err) == (Exit.COMPLETED, "")
    found = rows(first.out)
    assert found["sum"][:6] == ["passed", "sum", "1/1", "1", "100", "0.25"]
    assert found["pays"][:6] == ["passed", "pays", "1/1", "2", "200", "0.5"]
    assert "2 of 2 cases passed: 3 requests, 300 tokens, cost 0.75, " in first.out
    assert "compared with" not in first.out
    assert "\x1b" not in first.out

    (cases.parent / "answer").write_text("5")
    second = cli("eval", "shop.yaml", *AT, "--repeat", "2")
    assert second.code == Exit.FAILED
    assert rows(second.out)["sum"][:3] == ["failed", "sum", "0/2"]
    assert "failed: sum (2 of 2), run eval-" in second.out
    assert "  output.equals: expected '4', got '5'" in second.out
    assert "  newly failing: sum" in second.out
    assert "  one run of each case: requests +0, tokens +0, cost +0, time " in second.out


def test_a_damaged_journal_is_one_sentence_and_no_case_runs(
    cli: Cli, cases: Path, one_sentence: Callable[[Any], str]
) -> None:
    assert cli("eval", "shop.yaml", *AT).code == Exit.COMPLETED
    before = asked(cases.parent)
    journal = cases.parent / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole[:100] + bytes(len(whole) - 100))
    done = cli("eval", "shop.yaml", *AT)
    assert done.code not in (Exit.COMPLETED, Exit.FAILED)
    assert "journal.db" in one_sentence(done)
    assert asked(cases.parent) == before


def test_json_is_one_object_that_is_a_baseline_later(
    cli: Cli, cases: Path, lines: Callable[[str], Any]
) -> None:
    (cases.parent / "answer").write_text("5")
    first = cli("eval", "shop.yaml", *AT, "--json", "--judge", "agents:polite", "--case", "sum")
    (report,) = lines(first.out)
    assert (first.code, report["passed"], report["name"], report["agent"]) == (1, False, "shop", "support")
    assert report["cases"] == {"sum": {"status": "failed", "passed": 0, "of": 1}}
    checks = {check["name"]: check for check in report["results"][0]["checks"]}
    assert checks["judge polite"]["score"] == 0.25
    (cases.parent / "report.json").write_text(first.out)
    (cases.parent / "answer").write_text("4")
    for baseline in ("report.json", report["evaluation_id"]):
        done = cli("eval", "shop.yaml", *AT, "--baseline", baseline)
        assert done.code == 0
        assert f"compared with {report['evaluation_id']}\n  newly passing: sum\n  new: pays\n" in done.out


@pytest.mark.usefixtures("cases")
def test_the_log_of_the_agent_does_not_mix_with_the_report(cli: Cli) -> None:
    done = cli("eval", "shop.yaml", "--agent", "agents:logging", "--journal", JOURNAL, "--json")
    assert json.loads(done.out)["passed"]
    assert {json.loads(line)["msg"] for line in done.err.splitlines()} >= {"run.started", "run.completed"}


def test_junit_has_each_case_and_is_replaced(cli: Cli, cases: Path) -> None:
    junit = cases.parent / "junit.xml"
    junit.write_text("old")
    (cases.parent / "answer").write_text("5")
    assert cli("eval", "shop.yaml", *AT, "--junit", "junit.xml").code == 1
    suite = parse(junit).getroot()  # noqa: S314 - our own
    assert [case.attrib["name"] for case in suite.iter("testcase")] == ["sum", "pays"]
    assert [fault.attrib["message"] for fault in suite.iter("failure")] == [
        "output.equals: expected '4', got '5'"
    ]


def test_judges_are_named_and_one_that_raises_is_an_error(cli: Cli, cases: Path) -> None:
    done = cli(
        "eval", "shop.yaml", *AT, "--judge", "nice=agents:polite", "--judge", "agents:broken", "--tag", "math"
    )
    assert done.code == Exit.FAILED
    assert rows(done.out)["sum"][0] == "error"
    assert "  judge nice: the score is 0.25, the least that passes is 0.5" in done.out
    assert "  judge broken: ValueError: no verdict" in done.out


def test_a_question_without_an_answer_ends_the_case(cli: Cli, cases: Path) -> None:
    cases.write_text("- name: asks\n  input: refund 7\n")
    done = cli("eval", "shop.yaml", *AT)
    assert done.code == Exit.FAILED
    assert "the run has waiting: it waits for a person: the case has no answer about 'refund'" in done.out
    assert cli("runs", "list", "--waiting", "--journal", JOURNAL).out.strip().startswith("no run")


def test_hostile_text_of_a_model_reaches_no_terminal(cli: Cli, cases: Path) -> None:
    cases.write_text("- name: bad\n  input: hostile\n  expect: {output: x}\n")
    done = cli("eval", "shop.yaml", *AT, "--junit", "junit.xml")
    assert done.code == Exit.FAILED
    for text in (done.out, (cases.parent / "junit.xml").read_text()):
        assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "\\x1b[31mred" in done.out


def test_a_budget_leaves_cases_for_the_next_call(cli: Cli, cases: Path) -> None:
    options = ("--concurrency", "1", "--budget", "cost=0.25", "--junit", "junit.xml")
    done = cli("eval", "shop.yaml", *AT, *options)
    assert done.code == Exit.BUDGET_EXCEEDED
    assert "1 of 2 cases passed" in done.out
    assert (
        "not run: pays: the cost budget of 0.25 is used up (0.25); the same command with a larger" in done.out
    )
    assert '<skipped message="the cost budget' in (cases.parent / "junit.xml").read_text()
    (listed,) = cli("runs", "list", "--json", "--graph", "evaluation", "--journal", JOURNAL).out.splitlines()
    name = json.loads(listed)["run_id"]
    hint = f"orchestrator eval FILE --agent MODULE:FUNCTION --journal {JOURNAL}"
    assert hint in cli("runs", "show", name, "--journal", JOURNAL).out
    assert f"`{hint}` resumes it" in cli("runs", "resume", name, "--journal", JOURNAL).err
    again = cli("eval", "shop.yaml", *AT)
    assert again.code == 0
    assert "1 result of an earlier process of this evaluation" in again.out
    assert asked(cases.parent) == ["2+2", "refund 7", "refunded 7"]


def test_the_evaluation_and_its_runs_are_runs_of_the_journal(
    cli: Cli, cases: Path, lines: Callable[[str], Any]
) -> None:
    cli("eval", "shop.yaml", *AT)
    listed = lines(cli("runs", "list", "--json", "--tag", "evaluation=shop", "--journal", JOURNAL).out)
    assert sorted(run["graph"] for run in listed) == ["evaluation", "llm_loop", "llm_loop"]
    (own,) = [run for run in listed if run["graph"] == "evaluation"]
    assert (own["status"], own["agent"]) == ("ended", "support")
    for command in (("show",), ("events",), ("export",)):
        assert cli("runs", *command, own["run_id"], "--journal", JOURNAL).code == 0
    assert cli("doctor", "--journal", JOURNAL).code == 0


@pytest.mark.parametrize("suffix", ["yaml", "jsonl"])
def test_recorded_runs_become_cases_that_pass(cli: Cli, cases: Path, suffix: str) -> None:
    cli("eval", "shop.yaml", *AT)
    listed = cli("runs", "list", "--json", "--graph", "llm_loop", "--journal", JOURNAL).out
    names = [json.loads(line)["run_id"] for line in listed.splitlines()]
    new = f"recorded.{suffix}"
    done = cli("runs", "export", *names, "--as-case", new, "--journal", JOURNAL)
    assert done.out == f"{new}: 2 cases. Review what they expect, and their texts, before you share them\n"
    assert (cases.parent / new).stat().st_mode & 0o777 == 0o600
    again = cli("eval", new, *AT)
    assert again.code == 0, again.out
    assert "2 of 2 cases passed" in again.out
    assert (
        cli("runs", "export", *names, "--as-case", new, "--journal", JOURNAL).code == Exit.USAGE
    )  # it exists


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.yaml", *AT), "none.yaml"),
        (("agents.py", *AT), "must end in .yaml, .yml or .jsonl"),
        (("shop.yaml", "--agent", "agents:refund", "--journal", JOURNAL), "agent"),
        (("shop.yaml", "--agent", "agents:missing"), "agents has no 'missing'"),
        (("shop.yaml", "--agent", "agents"), "not of the form module:attribute"),
        (("shop.yaml", "--agent", "agents:nothing"), "is of the class str; an evaluation is of an Agent"),
        (("shop.yaml", "--agent", "agents:elsewhere"), "has another journal than the one that it is given"),
        (("shop.yaml", *AT, "--case", "some"), "there is no case 'some'; the cases: pays, sum"),
        (("shop.yaml", *AT, "--tag", "x"), "no case is selected; the tags of the cases: math"),
        (("shop.yaml", *AT, "--repeat", "0"), "repeat is 0; it must be 1 or more"),
        (("shop.yaml", *AT, "--concurrency", "0"), "concurrency is 0; it must be 1 or more"),
        (("shop.yaml", *AT, "--budget", "cost"), "is not of the form NAME=VALUE"),
        (("shop.yaml", *AT, "--budget", "price=3"), "unknown setting budget.price; known: cost, seconds, tokens"),
        (("shop.yaml", *AT, "--budget", "cost=much"), "setting budget.cost"),
        (("shop.yaml", *AT, "--budget", "cost=nan"), "budget cost is nan; it must be 0 (off) or more"),
        (("shop.yaml", *AT, "--budget", "tokens=-3"), "budget tokens is -3; it must be 0 (off) or more"),
        (("shop.yaml", *AT, "--judge", "agents:none"), "agents has no 'none'"),
        (("shop.yaml", *AT, "--judge", "agents:SET"), "agents has no 'SET'"),
        (("shop.yaml", *AT, "--judge", "agents:polite", "--judge", "agents:polite"), "two judges have one name"),
        (("shop.yaml", *AT, "--baseline", "nothing"), "no run 'nothing'"),
        (("shop.yaml", *AT, "--baseline", "shop.yaml"), "shop.yaml is not JSON"),
        (("shop.yaml", *AT, "--baseline", "other.json"), "other.json: this is no report of an evaluation"),
        (("shop.yaml", *AT, "--junit", "none/junit.xml"), "is no file in a folder that exists"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_nothing_runs(
    cli: Cli, cases: Path, one_sentence: Callable[..., str], arguments: tuple[str, ...], said: str
) -> None:
    (cases.parent / "other.json").write_text("{}")
    done = cli("eval", *arguments)
    assert done.code == Exit.USAGE
    assert said in one_sentence(done)
    assert not (cases.parent / "asked").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--as-case", "x.txt"), "ends in .yaml, .yml or .jsonl, not in '.txt'"),
        (("--as-case", "x.yaml", "--content"), "--as-case writes its own file"),
        (("other",), "several only with --as-case"),
    ],
)
def test_a_wrong_export_of_cases_is_one_sentence(
    cli: Cli, cases: Path, one_sentence: Callable[..., str], arguments: tuple[str, ...], said: str
) -> None:
    cli("eval", "shop.yaml", *AT, "--case", "sum")
    assert said in one_sentence(cli("runs", "export", "eval-", *arguments, "--journal", JOURNAL))
    assert not (cases.parent / "x.yaml").exists()


# ---- interruption ----

SLOW = """
- {name: quick, input: 2+2}
- {name: slow, input: slow}
- {name: last, input: 3+1}
"""


def until(met: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not met():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.canary("kill")
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGKILL, id="kill"), pytest.param(signal.SIGINT, id="ctrl-c")]
)
def test_an_interrupted_evaluation_is_continued_by_the_same_command(
    start: Callable[..., Any], cli: Cli, cases: Path, how: signal.Signals
) -> None:
    cases.write_text(SLOW)
    running = start("eval", "shop.yaml", *AT, "--concurrency", "1")
    log = cases.parent / "asked"
    until(lambda: log.exists() and "slow" in log.read_text())
    os.kill(running.pid, how)
    out, err = running.communicate(timeout=60)
    if how is signal.SIGINT:
        assert running.returncode == Exit.CANCELLED
        assert (out, "the same command continues the evaluation" in err) == ("", True)
    (cases.parent / "fast").touch()
    done = cli("eval", "shop.yaml", *AT)
    assert done.code == 0, done.out + done.err
    assert "3 of 3 cases passed" in done.out
    assert "1 result of an earlier process of this evaluation" in done.out
    assert sorted(asked(cases.parent)) == ["2+2", "3+1", "slow", "slow"]
    listed = cli("runs", "list", "--json", "--journal", JOURNAL).out.splitlines()
    runs = [json.loads(line) for line in listed]
    assert sorted(run["graph"] for run in runs) == ["evaluation", "llm_loop", "llm_loop", "llm_loop"]
    assert {run["status"] for run in runs} == {"ended"}

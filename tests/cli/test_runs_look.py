"""`runs list`, `show`, `export`."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, Response, Result, Usage, tool
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Posted
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM
from tests.cli.recorded import JOURNAL, SECRET, Call, Tape, play, record

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
AT = ("--journal", JOURNAL)


def family() -> list[Tape]:
    now = time.time()
    return [
        Tape("parent-run", began=now - 7_200).begin().calls(Call("look", effect="pure")).completes(),
        Tape("child-one", began=now - 3_600, parent_run_id="parent-run").begin().completes(),
        Tape("child-two", began=now - 600, parent_run_id="parent-run")
        .begin()
        .asks(Call("pay", '{"sum": 1}')),
        Tape("grandchild", began=now - 60, parent_run_id="child-one", graph="pipeline").begin(),
    ]


# ---- list ----


def test_runs_are_listed_newest_first(cli: Cli, folder: Path, lines: Callable[[str], Any]) -> None:
    record(*family())
    done = cli("runs", "list", *AT)
    assert re.findall(r"^  (\S+)", done.out, re.MULTILINE) == [
        "run",
        "grandchild",
        "child-two",
        "child-one",
        "parent-run",
    ]
    assert re.search(r"parent-run +- +llm_loop +ended +completed +finalize +- +2h +\ds ago", done.out)
    assert "waiting for you: orchestrator runs show child-two --journal journal.db" in done.out
    found = lines(cli("runs", "list", *AT, "--json").out)
    assert [(one["run_id"], one["status"], one["state"], one["outcome"]) for one in found] == [
        ("grandchild", "open", "await_llm", None),
        ("child-two", "parked", "process_tools", None),
        ("child-one", "ended", "finalize", "completed"),
        ("parent-run", "ended", "finalize", "completed"),
    ]


FILTERS = [
    (("--status", "ended"), ["child-one", "parent-run"]),
    (("--status", "parked"), ["child-two"]),
    (("--graph", "pipeline"), ["grandchild"]),
    (("--limit", "2"), ["grandchild", "child-two"]),
    (("--status", "ended", "--graph", "pipeline"), []),
]


@pytest.mark.parametrize(("options", "expected"), FILTERS)
def test_lists_are_filtered(
    cli: Cli, folder: Path, lines: Callable[[str], Any], options: tuple[str, ...], expected: list[str]
) -> None:
    record(*family())
    assert [one["run_id"] for one in lines(cli("runs", "list", *AT, "--json", *options).out)] == expected


def test_runs_that_are_not_shown_are_announced(cli: Cli, folder: Path) -> None:
    record(*family())
    done = cli("runs", "list", *AT, "--limit", "1")
    assert "… and more: --limit 0 shows all, --after grandchild the next" in done.out
    assert "… and more" not in cli("runs", "list", *AT, "--limit", "4").out
    assert cli("runs", "list", *AT, "--graph", "none").out == "no run fits\n"


def test_the_environment_names_the_journal_too(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(*family())
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", JOURNAL)
    assert "orchestrator runs show child-two\n" in cli("runs", "list").out


# ---- show ----


def shown(cli: Cli, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli("runs", "show", run, *AT, "--json").out)
    return found


def test_the_text_of_an_error_is_scrubbed_as_in_the_log(cli: Cli, folder: Path) -> None:
    error = {
        "type": "LLMError",
        "message": "401 for https://bob:hunter2@host/ with Bearer abc",
        "reason": "llm_error",
    }
    tape = Tape("run-1").begin()
    record(tape.add(tape.to("terminate_error", "failure", 1.0, error=error)).ends("failed", "llm_error"))
    said = "401 for https://[redacted]host/ with [redacted]"
    assert f"error         LLMError: {said}\n" in cli("runs", "show", "run-1", *AT).out
    assert shown(cli, "run-1")["error"] == {**error, "message": said}


def test_a_list_says_why_a_run_failed_and_names_the_request(cli: Cli, folder: Path) -> None:
    error = {
        "type": "LLMError",
        "is": "LLMError",
        "message": "server\x1b said no",
        "where": "server.py:7",
        "fields": {"kind": "server_error", "status": 503},
        "state": "await_llm",
        "iteration": 1,
    }
    attempts = [[1.0, 0.1, "server_error"], [2.0, 0.1, "server_error"]]
    failed = Tape("failed").begin()
    failed.add(failed.to("terminate_error", "failure", 1.0, error=error, attempts=attempts))
    record(failed.ends("failed", "llm_error"), Tape("fine").begin().completes())
    place = "await_llm, turn 2, attempt 2"
    line = next(line for line in cli("runs", "list", *AT).out.splitlines() if "failed" in line)
    assert line.endswith(f"  LLMError (server_error, HTTP 503, server.py:7), {place}")
    [plain] = [
        one for one in map(json.loads, cli("runs", "list", *AT, "--json").out.splitlines()) if one["error"]
    ]
    assert plain["run_id"] == "failed"
    assert plain["error"] | {"turn": 2, "attempt": 2, "status": 503, "state": "await_llm"} == plain["error"]
    assert "message" not in plain["error"]
    shown_run = cli("runs", "show", "failed", *AT).out
    assert "error         LLMError (server_error, HTTP 503, server.py:7): server\\x1b said no\n" in shown_run
    assert f"failed in     {place}\n" in shown_run


def test_a_list_without_a_failed_run_has_no_column_of_errors(cli: Cli, folder: Path) -> None:
    record(Tape("fine").begin().completes())
    assert "error" not in cli("runs", "list", *AT).out


def test_the_error_of_a_budget_keeps_its_name_and_its_numbers(cli: Cli, folder: Path) -> None:
    message = "output_tokens: 4000 of 4000 used"
    error = {"type": "LimitReached", "message": message, "reason": "output_tokens"}
    tape = Tape("run-1").begin()
    record(
        tape.add(tape.to("terminate_error", "failure", 1.0, error=error)).ends("budget_exceeded", "tokens")
    )
    assert f"error         LimitReached: {message}\n" in cli("runs", "show", "run-1", *AT).out
    assert shown(cli, "run-1")["error"] == error


def test_show_counts_what_the_limits_count_with_child_runs_and_estimates(cli: Cli, folder: Path) -> None:
    child = Agent(ScriptedLLM([Response("found", usage=Usage(400, 1))]), observers=(), name="search")
    answers = [
        Response(None, (call("search", task="x"),), usage=Usage(10, 1)),
        Response("done", usage=Usage(30, 2)),
    ]

    async def ran() -> Result:
        async with SqliteJournal(JOURNAL) as journal:
            tools = [child.as_tool("search", "Search.")]
            agent = Agent(ScriptedLLM(answers), tools=tools, journal=journal, observers=())
            return await agent.run("go", run_id="run-1")

    usage = asyncio.run(ran()).usage
    said = "counted by the limits, with child runs and estimates: 444 tokens: 440 tokens in, 4 out"
    assert said in cli("runs", "show", "run-1", *AT).out
    found = shown(cli, "run-1")
    assert found["usage"]["input_tokens"] + found["usage"]["output_tokens"] == found["tokens"] == 444
    assert found["usage"]["input_tokens"] == usage.input_tokens


def test_the_visit_that_lasts_counts_with_the_time_it_has_lasted(start: Start, folder: Path) -> None:
    async def scenario() -> tuple[str, dict[str, Any]]:
        async with SqliteJournal(JOURNAL, now=lambda: time.time() - 40) as journal:
            await play(Tape("run-1").begin(), journal)
            told = [start("runs", "show", "run-1", *AT, *how) for how in ((), ("--json",))]
            text, data = [(await asyncio.to_thread(one.communicate, timeout=60))[0] for one in told]
            return text, json.loads(data)

    text, data = asyncio.run(scenario())
    found = re.search(r"^  await_llm \(running\) +1 +(\d+\.\d+)", text, re.MULTILINE)
    assert found is not None, text
    assert float(found[1]) >= 40
    assert data["states"]["await_llm"]["total_s"] >= 40
    assert data["states"]["await_llm"]["share"] > 0.9


def test_show_has_where_it_stands_what_it_waits_for_and_the_commands(cli: Cli, folder: Path) -> None:
    tape = Tape("a run; rm -rf", began=time.time() - 50).begin()
    record(tape.asks(Call("pay", '{"sum": 1}'), expires_in=300))
    done = cli("runs", "show", "a ru", *AT)
    digest = tape.digest("1:0")
    assert (done.code, done.err) == (0, "")
    assert "status        parked (approval)" in done.out
    assert "state         process_tools, turn 1" in done.out
    assert "1:0  pay  may this call run?" in done.out
    assert "      sum = 1\n" in done.out
    assert f"digest     {digest}" in done.out
    assert re.search(r"expires    \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, in (4m 5\d|5m 00)s", done.out)
    command = (
        f"orchestrator runs approve 'a run; rm -rf' --call 1:0 --digest {digest[:12]} --journal journal.db"
    )
    assert f"          {command}\n" in done.out
    assert "orchestrator runs resume 'a run; rm -rf' --model SPEC --journal journal.db" in done.out
    assert command in shown(cli, "a run; rm -rf")["waiting_for"][0]["commands"]


def test_show_has_path_times_usage_calls_and_people(cli: Cli, folder: Path) -> None:
    tape = (
        Tape("run-1")
        .begin()
        .calls(Call("look", effect="pure"))
        .calls(Call("look", effect="pure", outcome="error"))
    )
    tape.asks(Call("pay")).decided("3:0", "approve", why="looks right").answered("3:0", Call("pay"))
    tape.add(Draft("control", {"kind": "pause", "by": "bob", "why": "lunch", "at": tape.at, "number": 2}))
    record(tape.completes())
    done = cli("runs", "show", "run-1", *AT)
    assert "3 × await_llm 3.000 s → evaluate_response → process_tools 1.500 s → update_budgets" in done.out
    assert re.search(r"await_llm +4 +4\.000 +1\.000 +1\.000 +\d\d\.\d%", done.out)
    assert "4 answers, 400 tokens in (160 cached), 40 out, 0 retried" in done.out
    assert re.search(r"look +pure +2 +ok 1, error 1 +1\.000", done.out)
    assert "approve 3:0 by ann: looks right" in done.out
    assert "pause by bob: lunch" in done.out
    found = shown(cli, "run-1")
    assert found["states"]["await_llm"]["visits"] == 4
    assert found["usage"] == {
        "input_tokens": 400,
        "output_tokens": 40,
        "cached_input_tokens": 160,
        "reasoning_tokens": 0,
        "cache_write_tokens": 0,
        "cost": None,
        "cost_max": None,
        "estimated_input_tokens": 0,
        "estimated_output_tokens": 0,
        "estimated_cost": 0.0,
        "currency": "",
        "answers": 4,
        "retries": 0,
    }
    assert [one["times"] for one in found["path"]] == [1, 3, 1]
    assert [one["record"] for one in found["people"]] == ["approval", "control"]


def test_show_draws_runs_that_a_run_started(cli: Cli, folder: Path) -> None:
    record(*family())
    assert (
        "sub-agents\n"
        "  ├─ child-one  llm_loop  ended\n"
        "  │  └─ grandchild  pipeline  open\n"
        "  └─ child-two  llm_loop  parked (approval)\n"
    ) in cli("runs", "show", "parent-run", *AT).out
    (one, two) = shown(cli, "parent-run")["children"]
    assert ([child["run_id"] for child in one["children"]], two["children"]) == (["grandchild"], [])


def test_parents_in_a_circle_are_drawn_once(cli: Cli, folder: Path) -> None:
    record(Tape("aaaa", parent_run_id="bbbb"), Tape("bbbb", parent_run_id="aaaa"))
    assert shown(cli, "aaaa")["children"][0]["children"] == []


def test_what_was_posted_and_not_taken_is_shown(cli: Cli, folder: Path) -> None:
    tape = Tape("run-1").begin().asks(Call("pay"))
    request = Posted("x", "approve", {"call": "1:0", "digest": tape.digest("1:0"), "why": "fine"}, "ann")
    record(tape, posts={"run-1": [request]})
    done = cli("runs", "show", "run-1", *AT)
    assert "answered   approve by ann, not read yet" in done.out
    assert "approve 1:0 by ann: fine (not read yet)" in done.out
    assert "runs approve" not in done.out


def test_a_question_that_expired_is_not_to_be_answered(cli: Cli, folder: Path) -> None:
    record(Tape("run-1").begin().asks(Call("pay"), expires_in=-100))
    done = cli("runs", "show", "run-1", *AT)
    assert "ago: too late to answer" in done.out
    assert "runs approve" not in done.out
    assert "orchestrator runs resume run-1" in done.out


def test_a_run_that_just_began_is_shown(cli: Cli, folder: Path) -> None:
    record(Tape("run-1"))
    done = cli("runs", "show", "run-1", *AT)
    assert (done.code, done.err) == (0, "")
    assert "state         (not started), turn 0" in done.out


def test_a_failure_is_named(cli: Cli, folder: Path) -> None:
    tape = Tape("run-1").begin()
    error = {"type": "LLMError", "message": "down\x1b[31m", "reason": "callback_error", "state": "await_llm"}
    tape.add(tape.to("terminate_error", "failure", 1.0, error=error)).ends("failed", "llm_error")
    record(tape)
    done = cli("runs", "show", "run-1", *AT)
    assert "status        ended: failed (llm_error)" in done.out
    assert "error         LLMError: down\\x1b[31m" in done.out


async def _held(tape: Tape, cli: Cli, *arguments: str) -> Any:
    async with SqliteJournal(JOURNAL) as journal:
        await play(tape, journal)
        return await asyncio.to_thread(cli, *arguments)


def test_a_run_that_is_held_says_by_whom_and_is_watched(cli: Cli, folder: Path) -> None:
    tape = Tape("run-1").begin().asked_for(Call("pay"))
    done = asyncio.run(_held(tape, cli, "runs", "show", "run-1", *AT))
    assert "held by       worker-1" in done.out
    assert re.search(r"state         process_tools, turn 1, for 1m 3\ds|state .*, for \d", done.out)
    assert re.search(r"pay +irreversible +1 +running 1", done.out)
    assert "orchestrator runs events run-1 --follow --since" in done.out


# ---- export ----


def test_an_export_without_content_is_safe_to_hand_around(cli: Cli, folder: Path) -> None:
    record(Tape("run-1").begin().calls(Call("look")).completes(SECRET))
    done = cli("runs", "export", "run-1", *AT)
    assert SECRET not in done.out
    found = json.loads(done.out)
    assert (found["format"], found["run"]["run_id"]) == ("orchestrator-run/1", "run-1")
    assert [one["kind"] for one in found["records"]].count("transition") == 8


def conversation_of_two() -> Tape:
    history = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "how many moons?"},
    ]
    context = {"messages": history, "limits": {}, "base": 4, "iteration": 0}
    tape = Tape("run-1", context=context).begin()
    tape.calls(Call("look", id=""), Call("look", "not JSON", id="", outcome="error"))
    return tape.calls(Call("mail", id="again")).calls(Call("mail", id="again")).completes()


REPLAYED: Sequence[tuple[Callable[[], Tape], str]] = [
    (conversation_of_two, "reproduced"),
    (lambda: Tape("run-1").begin().completes(), "reproduced"),
    (lambda: Tape("run-1").begin().calls(Call("look")), "reproduced_to_open_end"),
    (lambda: Tape("run-1").begin().asks(Call("pay")), "reproduced_to_open_end"),
]


@pytest.mark.parametrize("name", ["run.jsonl", "run.json"])
@pytest.mark.parametrize(("tape", "result"), REPLAYED)
def test_an_export_with_content_replays(
    cli: Cli, folder: Path, tape: Callable[[], Tape], result: str, name: str
) -> None:
    made = tape()
    record(made)
    assert cli("runs", "export", "run-1", *AT, "--content", "--output", name).code == 0
    done = cli("replay", name, "--json")
    found = json.loads(done.out)
    assert (found["id"], found["result"], done.code) == ("run-1", result, 0)
    exported = json.loads(Path(name).read_text())
    if result == "reproduced":
        assert found["messages"] == exported["messages"]
    assert [turn["usage"]["input_tokens"] for turn in exported["turns"]] == [100] * made.turn


def test_a_run_of_the_library_is_shown_exported_and_replayed(cli: Cli, folder: Path) -> None:
    @tool(effect="pure")
    def look(query: str) -> str:
        """Look it up."""
        return f"seen: {query}"

    async def ran() -> Result:
        async with SqliteJournal(JOURNAL) as journal:
            model = ScriptedLLM([call("look", query="moon"), call("look", query="sun"), "Two moons."])
            agent = Agent(model, tools=[look], journal=journal, observers=(), instructions="be brief")
            return await agent.run("how many?", run_id="run-1")

    result = asyncio.run(ran())
    found = shown(cli, "run-1")
    assert (found["outcome"], found["state"], found["turn"]) == ("completed", "finalize", 3)
    assert found["transitions"] == len(result.transitions)
    assert found["tools"][0]["outcomes"] == {"ok": 2}
    assert "seen: " not in cli("runs", "events", "run-1", *AT).out + cli("runs", "export", "run-1", *AT).out
    assert cli("runs", "export", "run-1", *AT, "--content", "--output", "run.jsonl").code == 0
    replayed = json.loads(cli("replay", "run.jsonl", "--json").out)
    assert replayed["result"] == "reproduced"
    assert replayed["messages"] == [message.to_openai() for message in result.messages]


def test_an_export_is_written_for_its_owner_only_and_never_over_something(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    record(Tape("run-1").begin().completes())
    assert (
        "run.json: 9 records of run run-1" in cli("runs", "export", "run-1", *AT, "--output", "run.json").out
    )
    assert stat.S_IMODE(Path("run.json").stat().st_mode) == 0o600
    before = Path("run.json").read_bytes()
    done = cli("runs", "export", "run-1", *AT, "--content", "--output", "run.json")
    assert "run.json exists and was not overwritten" in one_sentence(done)
    assert (done.code, Path("run.json").read_bytes()) == (2, before)
    assert cli("runs", "export", "run-1", *AT, "--output", "no/such/file").code == 2


def test_looking_leaves_no_owner_behind(cli: Cli, folder: Path) -> None:
    record(Tape("run-1").begin().completes())
    for command in ("show", "events", "export"):
        assert cli("runs", command, "run-1", *AT).code == 0
    assert not Path(f"{JOURNAL}-owners").exists() or not [*Path(f"{JOURNAL}-owners").iterdir()]


# ---- timeline ----


def test_the_timeline_of_a_run_is_written_to_a_file(cli: Cli, folder: Path) -> None:
    record(*family())
    done = cli("runs", "show", "parent-run", "--timeline", "run.svg", *AT)
    assert done == (0, "run.svg: 2 turns of run parent-run\n", "")
    text = Path("run.svg").read_text()
    assert "<title>Timeline of run parent-run</title>" in text
    assert "look" in text
    assert "child-one" in text
    assert SECRET not in text
    done = cli("runs", "show", "parent-run", "--timeline", "run.svg", "--turns", "2", "--json", *AT)
    assert json.loads(done.out) == {"run_id": "parent-run", "output": str(folder / "run.svg"), "turns": 1}


BAD_TIMELINES = [
    (
        ("--timeline", "run.jpg"),
        "run.jpg has the ending '.jpg'; a drawing is written to a file *.svg or *.png",
    ),
    (("--timeline", "run"), "run has the ending ''; a drawing is written to a file *.svg or *.png"),
    (("--timeline", "no/run.svg"), "no/run.svg is in the folder no, which does not exist; create it first"),
    (
        ("--timeline", "a.svg", "--turns", "2-1"),
        "--turns '2-1' is no range of turns; one is N or N-M, from 1",
    ),
    (("--timeline", "a.svg", "--turns", "0"), "--turns '0' is no range of turns"),
    (("--timeline", "a.svg", "--turns", "x"), "--turns 'x' is no range of turns"),
    (("--timeline", "a.svg", "--turns", "3"), "run 'parent-run' has 2 turns; --turns starts at turn 3"),
    (("--turns", "1"), "--turns selects a part of a drawing; name its file with --timeline FILE.svg"),
]


@pytest.mark.parametrize(("options", "said"), BAD_TIMELINES)
def test_a_wrong_file_or_range_of_a_timeline_is_one_sentence(
    cli: Cli, folder: Path, options: tuple[str, ...], said: str
) -> None:
    record(*family())
    done = cli("runs", "show", "parent-run", *options, *AT)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not list(folder.glob("*.svg"))

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import ENGINE
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers import price_table
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.service.runtime import Runtime
from tests.cli.parked import agents, bodies, parked, stored
from tests.cli.recorded import JOURNAL, Tape, record
from tests.cli.test_stop import until
from tests.cli.test_terminal import Terminal
from tests.ending import rest
from tests.tiers import SOAK

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]

ASK = ("run", "How many moons?", "--model")
LOOK = ("--tool", "models:look")


def test_states_pass_line_by_line_then_come_answer_and_outcome(cli: Cli) -> None:
    done = cli(*ASK, "python:models:answers", *LOOK)
    path = [line.split()[:3] for line in done.out.splitlines() if " -> " in line]
    assert [source for source, _, _ in path] == [
        "init",
        "await_llm",
        "evaluate_response",
        "process_tools",
        "update_budgets",
        "await_llm",
        "evaluate_response",
        "handle_completion",
    ]
    assert "tool look: ok" in done.out
    assert done.out.endswith(
        "\nTwo moons.\n\noutcome: completed; 2 requests, 1 tool call, 2 tokens in, 2 out\n"
    )
    assert (done.code, done.err) == (0, "")


CUT = """
from orchestrator.testing import ScriptedLLM
from orchestrator import Response

half = ScriptedLLM([Response("The first half", finish_reason="max_tokens")])
both = ScriptedLLM([Response("Too lo", finish_reason="length"), Response("Short.", finish_reason="stop")])
"""


def test_an_answer_that_the_output_limit_cut_has_an_exit_code_and_a_reason_to_look_for(
    folder: Path, cli: Cli
) -> None:
    (folder / "cut.py").write_text(CUT)
    done = cli(*ASK, "python:cut:half", "--run-id", "half")
    assert (done.code, done.err) == (3, "orchestrator: the run ended as partial (truncated)\n")
    assert "The first half" in done.out
    assert "outcome: partial (truncated)" in done.out
    short = cli(*ASK, "python:cut:both", "--run-id", "short", "--limit", "on_truncated=retry", "--stream")
    assert short.code == 0
    assert "Too lo" in short.out
    assert "attempt 1: truncated" in short.out[short.out.index("Too lo") : short.out.index("Short.")]
    found = [
        json.loads(line) for line in cli("runs", "list", "--reason", "truncated", "--json").out.splitlines()
    ]
    assert "half" in json.dumps(found)
    assert "short" not in json.dumps(found)


def test_json_is_one_object_with_everything(cli: Cli) -> None:
    (line,) = cli(*ASK, "python:models:answers", *LOOK, "--json").out.splitlines()
    result = json.loads(line)
    assert list(result) == [
        "run_id",
        "outcome",
        "reason",
        "finish_reason",
        "vendor_finish_reason",
        "output",
        "usage",
        "verdict",
        "error",
        "tool_errors",
        "messages",
        "transitions",
    ]
    assert (result["outcome"], result["output"]) == ("completed", "Two moons.")
    assert (result["finish_reason"], result["vendor_finish_reason"]) == ("stop", "stop")
    assert [message["role"] for message in result["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert result["messages"][2]["content"] == "seen: moon"
    assert [one["seq"] for one in result["transitions"]] == list(range(1, 9))
    assert result["transitions"][-1]["to_state"] == "finalize"
    assert result["usage"]["input_tokens"] == 2
    assert (result["verdict"], result["error"]) == (None, None)


def test_the_verdict_that_stopped_a_run_is_in_json_and_on_stderr(cli: Cli) -> None:
    done = cli(*ASK, "python:models:repeats", *LOOK, "--json", "--limit", "max_iterations=2")
    verdict = json.loads(done.out)["verdict"]
    assert verdict == {"ok": False, "guard": "iterations", "observed": 2, "limit": 2, "detail": ""}
    assert done.err == (
        "orchestrator: the run ended as budget_exceeded (max_iterations): iterations: 2 of 2 used\n"
    )


def test_the_error_that_failed_a_run_is_one_sentence(cli: Cli) -> None:
    done = cli(*ASK, "python:models:breaks", "--json")
    assert json.loads(done.out)["error"] == {"type": "ValueError", "message": "the model\nis down"}
    assert done.err == "orchestrator: the run ended as failed (llm_error): the model is down\n"


FORMS = [
    ("python:models:model", "How many moons??"),
    ("python:models:Model", "How many moons??"),
    ("python:models:asked", "1 messages, the first from user"),
]


@pytest.mark.parametrize(("spec", "answer"), FORMS)
def test_a_model_is_an_object_a_class_or_a_function(cli: Cli, spec: str, answer: str) -> None:
    assert json.loads(cli(*ASK, spec, "--json").out)["output"] == answer


def test_instructions_come_first(cli: Cli) -> None:
    done = cli(*ASK, "python:models:asked", "--instructions", "Be brief.", "--json")
    assert json.loads(done.out)["output"] == "2 messages, the first from system"


def test_a_prompt_can_come_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe"))
    assert (
        json.loads(cli("run", "-", "--model", "python:models:model", "--json").out)["output"]
        == "From a pipe?"
    )


def test_the_answer_can_be_held_to_a_schema(cli: Cli, folder: Path) -> None:
    schema = {"type": "object", "properties": {"moons": {"type": "integer"}}, "required": ["moons"]}
    (folder / "moons.json").write_text(json.dumps(schema))
    done = cli(*ASK, "python:models:json_answer", "--output-schema", "moons.json", "--json")
    assert json.loads(done.out)["output"] == {"moons": 2}
    refused = ("--limit", "completion_retries=0")
    done = cli(*ASK, "python:models:json_answer", "--output-schema", "moons.json", "--json", *refused)
    assert (json.loads(done.out)["reason"], done.code) == ("completion_invalid", 1)


def test_recorded_answers_come_with_recorded_tools(cli: Cli, folder: Path, record: Any) -> None:
    said = record.conversation(
        record.user("Then?"),
        record.says(None, ("c1", "look", "{}")),
        record.result("c1", "a moon"),
        record.says("One moon."),
    )
    (folder / "one.jsonl").write_text(json.dumps(said))
    for spec in ("replay:one.jsonl", "replay:one.jsonl#one"):
        messages = json.loads(cli("run", "Now?", "--model", spec, "--json").out)["messages"]
        assert [message["content"] for message in messages] == ["Now?", None, "a moon", "One moon."]
    own = json.loads(cli("run", "Now?", "--model", "replay:one.jsonl", *LOOK, "--json").out)["messages"]
    assert "query" in own[2]["content"]  # our tool misses the argument that the recorded one did not need


def test_a_cap_on_a_tool_is_written_as_json(cli: Cli) -> None:
    done = cli(*ASK, "python:models:repeats", *LOOK, "--json", "--limit", 'tool_caps={"look": 1}')
    assert json.loads(done.out)["verdict"]["guard"] == "tool_cap"


def test_settings_of_the_environment_hold_unless_the_command_line_says_otherwise(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_MODEL", "python:models:repeats")
    monkeypatch.setenv("ORCHESTRATOR_LIMITS__MAX_ITERATIONS", "2")
    assert json.loads(cli("run", "hi", *LOOK, "--json").out)["verdict"]["observed"] == 2
    done = cli("run", "hi", *LOOK, "--json", "--limit", "max_iterations=1")
    assert json.loads(done.out)["verdict"]["observed"] == 1
    assert json.loads(cli("run", "hi", *LOOK, "--json", "--model", "python:models:answers").out)["output"]


def test_the_log_can_be_kept_and_reported(cli: Cli, folder: Path) -> None:
    cli(*ASK, "python:models:answers", *LOOK, "--log", "run.log")
    cli(*ASK, "python:models:answers", *LOOK, "--log", "run.log", "--json")
    lines = [json.loads(line) for line in (folder / "run.log").read_text().splitlines()]
    assert len({line["run_id"] for line in lines}) == 2
    assert "2 runs completed" in cli("report", "run.log").out


def test_text_that_would_drive_the_terminal_or_no_encoding_holds_is_harmless(cli: Cli) -> None:
    assert "half a character: ?, and \\x1b[31mred\n" in cli(*ASK, "python:models:surrogate").out
    done = cli(*ASK, "python:models:surrogate", "--json")
    told = json.loads(done.out)
    assert (told["outcome"], told["output"]) == ("completed", "half a character: ?, and \x1b[31mred")


# ---- the journal ----


def test_a_run_is_always_kept_and_with_it_what_it_was_started_with(cli: Cli, folder: Path) -> None:
    (folder / "orchestrator.toml").write_text("[retry]\nattempts = 2\n")
    (folder / "any.json").write_text("{}")
    done = cli(
        *ASK, "python:models:answers", *LOOK, "--instructions", "Be brief.", "--output-schema", "any.json"
    )
    assert done.out.startswith("run ")
    name = done.out.split()[1].rstrip(",")
    file = folder / ".orchestrator/journal.db"
    assert f"run {name}, journal .orchestrator/journal.db\n" in done.out
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    (created,) = bodies("created", name, str(file))
    launch = dict(created["launch"])
    assert len(bytes.fromhex(launch.pop("signature"))) == 32
    assert launch == {
        "model": "python:models:answers",
        "tools": ["models:look"],
        "instructions": "Be brief.",
        "output_schema": f"{folder}/any.json",
        "retry": {"attempts": 2},
        "cwd": str(folder),
    }


def test_the_journal_and_the_id_can_be_chosen(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_JOURNAL", "kept/there.db")
    found = json.loads(cli(*ASK, "python:models:model", "--run-id", "mine", "--json").out)
    assert (found["run_id"], stored("mine", "kept/there.db")[0].status) == ("mine", "ended")
    cli(*ASK, "python:models:model", "--run-id", "other", "--journal", "here.db")
    assert stored("other", "here.db")[0].status == "ended"
    assert not Path(".orchestrator").exists()


def test_an_id_that_is_taken_or_none_is_one_sentence(cli: Cli, one_sentence: Callable[..., str]) -> None:
    cli(*ASK, "python:models:model", "--run-id", "mine")
    done = cli(*ASK, "python:models:model", "--run-id", "mine")
    assert one_sentence(done) == (
        "orchestrator: run 'mine' exists: `orchestrator runs resume mine` resumes it, --continue too, or choose "
        "another --run-id"
    )
    assert done.code == 2
    again = cli(*ASK, "python:models:model", "--run-id", "mine", "--continue")
    assert (again.code, again.out.splitlines()[-1].split(";")[0]) == (0, "outcome: completed")
    missing = cli(*ASK, "python:models:model", "--continue")
    assert one_sentence(missing) == "orchestrator: --continue is about a run: name it with --run-id"
    text = "give text of 1 to 256 printable characters, without line breaks"
    name = "which no route or command line can name; give text without a slash, without blanks around it, and without "
    for bad, allowed in (("", text), ("a\nb", text), (" x", name), ("-x", name), ("a/b", name), ("..", name)):
        done = cli(*ASK, "python:models:model", f"--run-id={bad}")
        assert allowed in one_sentence(done)
        assert done.code == 2


def test_other_runs_that_nobody_has_are_said_in_one_line(cli: Cli, folder: Path) -> None:
    parked(folder)
    at = ("--journal", JOURNAL)
    done = cli(*ASK, "python:models:model", "--json", *at)
    assert done.err == (
        "orchestrator: 1 other run is open and has no owner: `orchestrator runs resume --journal journal.db` "
        "says what would happen\n"
    )
    assert done.code == 0
    parked(folder, "run-2")
    assert "2 other runs are open and have no owner: " in cli(*ASK, "python:models:model", *at).err


def test_a_run_that_no_list_shows_is_no_other_run(cli: Cli) -> None:
    """The check of `doctor` and engines are runs of the journal too; a continued run is not another one."""
    cli(*ASK, "python:models:model", "--run-id", "ended")
    assert cli("doctor").code == 0
    record(Tape("engine-1", graph=ENGINE).begin(), path=".orchestrator/journal.db")
    shown = cli("runs", "list", "--all").out
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["engine-1", "doctor", "ended"]
    assert cli(*ASK, "python:models:model").err == ""
    assert cli("runs", "resume").out == "no run is open\n"
    assert cli("runs", "migrate", "--dry-run").out == "no run is in flight\n"

    record(Tape("open", fingerprint=LLM_LOOP.fingerprint).begin(), path=".orchestrator/journal.db")
    done = cli(*ASK, "python:models:model", "--run-id", "open", "--continue")
    assert (done.code, done.err) == (0, "")


def test_what_keeps_it_from_beginning_makes_no_journal(
    cli: Cli, one_sentence: Callable[..., str], folder: Path
) -> None:
    assert "a int cannot become a tool" in one_sentence(
        cli(*ASK, "python:models:answers", "--tool", "models:number")
    )
    assert not (folder / ".orchestrator").exists()


# ---- waiting for a person ----

PAY = ("run", "Pay.", "--model", "python:agents:teller", "--tool", "agents:pay", "--run-id", "run-1")


def test_a_run_that_waits_says_what_is_asked_and_how_to_answer(start: Start, cli: Cli, folder: Path) -> None:
    agents(folder)
    running = start(*PAY)
    shown = until(running, "runs respond")
    assert "    parked in process_tools: approval\n" in shown
    assert (
        "run run-1 waits for a person; answer from another terminal:\n  1:0  pay  may this call run?" in shown
    )
    assert "      euros = 4\n" in shown
    assert re.search(r"expires    \d{4}-\d\d-\d\d .*, in 7d 00h", shown)
    command = re.search(r"orchestrator (runs approve run-1 --call 1:0 --digest [0-9a-f]{12})\n", shown)
    assert command is not None
    assert cli(*command[1].split(), "--by", "ann").code == 0
    out, err = rest(running)
    assert (running.returncode, err) == (0, "")
    assert out.startswith("    resumed\n    tool pay: ok")
    assert (folder / "paid.txt").read_text() == "4\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if SOAK else [signal.SIGTERM])
def test_a_signal_cancels_a_run_that_waits(start: Start, folder: Path, number: int) -> None:
    agents(folder)
    running = start(*PAY)
    until(running, "runs respond")
    running.send_signal(number)
    out, err = rest(running)
    assert (running.returncode, "outcome: cancelled (caller)" in out) == (6, True)
    assert err == "orchestrator: the run ended as cancelled (caller): cancelled by caller: signal\n"
    head, _ = stored("run-1", ".orchestrator/journal.db")
    assert (head.status, head.reason) == ("ended", "caller")
    assert not (folder / "paid.txt").exists()


def test_with_json_it_is_stderr_that_says_that_it_waits(start: Start, cli: Cli, folder: Path) -> None:
    agents(folder)
    running = start(*PAY, "--json")
    assert running.stderr is not None
    assert running.stderr.readline() == (
        "orchestrator: run run-1 waits for a person: `orchestrator runs show run-1`\n"
    )
    assert cli("runs", "reject", "run-1", "--end", "--by", "ann").code == 0
    out, err = rest(running)
    assert (running.returncode, json.loads(out)["outcome"]) == (7, "rejected")
    assert "rejected by ann" in err


def test_on_a_terminal_the_question_stands_above_the_table_in_lines_to_be_copied(
    start: Start, cli: Cli, folder: Path
) -> None:
    agents(folder)
    terminal = Terminal(start, *PAY, "--journal", f"{'deep/' * 20}journal.db")
    terminal.until("waits: approval")
    terminal.until("run pay? type y or n")  # the table says that it waits before the question is printed
    command = re.search(r"elsewhere  orchestrator (runs show run-1 .*journal\.db)\n", terminal.text)
    assert command is not None
    command = re.search(r"orchestrator (runs approve run-1 .*journal\.db)\n", cli(*command[1].split()).out)
    assert command is not None
    assert len(command[0]) > 140
    assert cli(*command[1].split()).code == 0
    assert terminal.end() == (0, "")
    final = terminal.text[terminal.text.rindex("state  ") :]
    assert "tools: pay ok ×1" in final
    assert "waits" not in final
    assert "1 paid: 4 euros" in final


@pytest.mark.canary
def test_a_run_that_was_killed_while_it_waits_goes_on_in_another_process(
    start: Start, cli: Cli, process: Cli, folder: Path
) -> None:
    agents(folder)
    running = start(*PAY)
    until(running, "runs respond")
    running.kill()
    running.wait()
    assert cli("runs", "approve", "run-1").code == 0
    done = process("runs", "resume", "run-1")
    assert (done.code, done.err) == (0, "")
    assert (folder / "paid.txt").read_text() == "4\n"


def test_the_next_run_of_a_conversation_knows_what_was_said_whichever_process_asks(
    cli: Cli, process: Cli
) -> None:
    talk = ("--conversation", "moons", "--json")
    first = json.loads(cli(*ASK, "python:models:asked", *talk).out)
    second = json.loads(process(*ASK, "python:models:asked", *talk).out)
    assert [one["output"] for one in (first, second)] == [
        "1 messages, the first from user",
        "3 messages, the first from user",
    ]


ASKED = (
    "run",
    "how many moons?",
    "--run-id",
    "one",
    "--model",
    "python:models:answers",
    "--tool",
    "models:look",
)


def test_the_answer_comes_in_the_place_of_the_states_and_only_once(cli: Cli) -> None:
    done = cli(*ASKED, "--stream")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line for line in lines if "Two moons." in line] == ["Two moons."]
    assert any(line.startswith("    tool look: ok, 10 characters") for line in lines)
    assert not any("->" in line for line in lines)
    assert lines[-1].startswith("outcome: completed; 2 requests, 1 tool call")


def test_with_json_each_event_is_a_line_and_the_result_is_the_last(cli: Cli) -> None:
    done = cli(*ASKED, "--stream", "--json")
    facts = [json.loads(line) for line in done.out.splitlines()]
    result = facts.pop()
    assert (result["outcome"], result["output"]) == ("completed", "Two moons.")
    kinds = [fact["type"] for fact in facts]
    assert (kinds[0], kinds[-1]) == ("RunCreated", "RunFinished")
    assert "".join(fact["text"] for fact in facts if fact["type"] == "TextDelta") == "Two moons."
    walked = [
        (fact["source"], fact["event"], fact["dest"]) for fact in facts if fact["type"] == "StateChanged"
    ]
    assert walked == [(one["from_state"], one["event"], one["to_state"]) for one in result["transitions"]]
    called = next(fact for fact in facts if fact["type"] == "ToolStarted")
    assert (called["tool"], called["arguments"], bool(called["id"])) == ("look", '{"query": "moon"}', True)


def test_a_model_that_knows_no_streaming_has_its_answer_printed_at_the_end(cli: Cli) -> None:
    done = cli("run", "who?", "--model", "python:models:model", "--stream")
    assert done.code == 0
    assert done.out.splitlines()[-3:-1] == ["who??", ""]


def test_an_answer_that_was_cut_is_said_again_on_a_line_of_its_own(cli: Cli) -> None:
    done = cli("run", "go", "--model", "python:models:cut", "--stream")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[1] == "Two mo"
    assert lines[2].startswith("    attempt 1: connection,")
    assert lines[3] == "Two moons."


def test_who_stops_reading_has_the_run_cancelled(
    start: Callable[..., subprocess.Popen[str]], cli: Cli, folder: Path
) -> None:
    asked = ("run", "x", "--run-id", "one", "--model", "python:models:endless", "--tool", "models:look")
    process = start(*asked, "--stream", "--limit", "max_iterations=0", "--limit", "max_repeated_success=0")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    process.stderr.close()
    (run,) = [json.loads(line) for line in cli("runs", "list", "--json").out.splitlines()]
    assert (run["run_id"], run["outcome"]) == ("one", "cancelled")


_BLANK = """
from orchestrator.testing import ScriptedLLM
llm = ScriptedLLM([" \\n "] * 3)
"""


@pytest.mark.parametrize("form", [(), ("--json",), ("--stream",)])
def test_a_blank_answer_is_told_on_standard_error_and_completes(
    cli: Cli, folder: Path, form: tuple[str, ...]
) -> None:
    (folder / "blank.py").write_text(_BLANK)
    done = cli("run", "hi", "--model", "python:blank:llm", *form)
    assert done.code == 0
    assert done.err == "orchestrator: the final answer of the model is blank\n"
    assert "empty_answer" in done.out


async def lose(path: Path, times: int) -> None:
    asked = asyncio.Event()

    async def model(_: Request) -> Response:
        asked.set()
        if times:
            await asyncio.Event().wait()
        return Response("done", usage=Usage(7, 5))

    async with SqliteJournal(path) as journal:
        one = Agent(
            FunctionLLM(model, model="m"),
            params={"max_tokens": 300},
            runtime=Runtime(journal=journal, observers=(), price=price_table({"m": (0, 1_000)})),
        )
        first = True
        while times:
            asked.clear()
            work = asyncio.create_task(one.run("go", run_id="r") if first else one.resume("r"))
            await asked.wait()
            work.cancel()
            await asyncio.wait((work,))
            first, times = False, times - 1
        await one.resume("r")


def test_what_was_charged_for_lost_answers_is_shown_apart(cli: Cli, folder: Path) -> None:
    asyncio.run(lose(folder / "journal.db", 2))
    at = ("--journal", "journal.db")
    done = cli("runs", "show", "r", *at)
    assert "1 answer, 7 tokens in (0 cached), 5 out, cost 0.005 USD, 0 retried" in done.out
    assert "estimate charged for lost and interrupted answers: 2 tokens in, 600 out, cost 0.6 USD" in done.out
    usage = json.loads(cli("runs", "show", "r", *at, "--json").out)["usage"]
    assert (usage["output_tokens"], usage["cost"]) == (605, 0.605)
    assert (usage["estimated_output_tokens"], usage["estimated_cost"]) == (600, 0.6)

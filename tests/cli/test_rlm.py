"""`orchestrator rlm`: a question about a file, answered by code or by tools, shown, kept, resumed."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tools.tool_error import ON_TOOL_ERROR
from tests.cli.test_stop import until

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]

LIBRARIAN = ("--model", "python:orchestrator.examples.rlm:librarian")
MODELS = '''
import threading
from pathlib import Path

from orchestrator import Response, Usage, tool
from orchestrator.providers.scripted import call
from orchestrator.testing import FunctionLLM, ScriptedLLM


def keys(request):
    """Give the keys of the data, then the limit that refused, if one did."""
    if request.messages[0].role != "system":
        return "yes"
    return "```repl\\nfound = ', '.join(sorted(context))\\n```\\nFINAL_VAR(found)"


def asks(request):
    """Ask three things in one block, and give what became of them."""
    if request.messages[0].role != "system":
        return Response("yes", usage=Usage(10, 5))
    code = (
        "said = []\\nfor n in range(3):\\n    try:\\n        said.append(llm_query(str(n)))\\n"
        "    except QueryError as error:\\n        said.append(str(error))\\nsaid = '; '.join(said)"
    )
    return "```repl\\n" + code + "\\n```\\nFINAL_VAR(said)"


def shows(request):
    return "```repl\\nfound = repr(context)\\n```\\nFINAL_VAR(found)"


def never_done(request):
    return "```repl\\nprint(1)\\n```"


def loops(request):
    return "```repl\\nwhile True:\\n    pass\\n```"


def other(request):
    return "answered by the other one"


def hangs_once(request):
    """Make a variable, hang once when asked what comes next, then look whether it is there."""
    turn = sum(message.role == "assistant" for message in request.messages)
    if turn == 0:
        return "```repl\\nkept = 1\\n```"
    if not Path("hung").exists():
        Path("hung").touch()
        print("here it is", flush=True)
        threading.Event().wait(600)
    return "```repl\\nfound = f'{len(context)} characters, kept: {\\"kept\\" in dir()}'\\n```\\nFINAL_VAR(found)"


def looks():
    return ScriptedLLM([[call("price", item="A1"), call("price", item="A1")], "I cannot find it."])


def double(text: str) -> str:
    """Say it twice."""
    return text + text


@tool(effect="pure")
def price(item: str) -> int:
    """Return the price of an item."""
    return {}[item]


@tool(effect="pure", errors="raise_bugs", name="price")
def strict(item: str) -> int:
    """Return the price of an item."""
    return {}[item]
'''


@pytest.fixture(autouse=True)
def _models(folder: Path) -> None:
    (folder / "rlm_models.py").write_text(MODELS)
    (folder / "book.txt").write_text(
        "The whale was white. Nobody knew why.\n\n" * 2_000 + "The harpoon was lost. A whale took it.\n"
    )


def model(name: str) -> tuple[str, str]:
    return ("--model", f"python:rlm_models:{name}")


def test_code_mode_answers_a_question_about_a_file(cli: Cli) -> None:
    done = cli(
        "rlm", "run", "book.txt", "--prompt", 'What is said of "harpoon"?', *LIBRARIAN, "--run-id", "r1"
    )
    assert (done.code, done.err) == (0, "")
    assert "\nThe harpoon was lost.\n" in done.out
    assert done.out.endswith("outcome: completed; 2 turns, 1 sub-call, 4 tokens in, 4 out\n")
    assert re.findall(r"^  (\w+) -> (\w+)", done.out, re.MULTILINE) == [
        ("INIT", "PROMPTING"),
        ("PROMPTING", "EXECUTING"),
        ("EXECUTING", "PROMPTING"),
        ("PROMPTING", "EXECUTING"),
        ("EXECUTING", "PROMPTING"),
        ("PROMPTING", "DONE"),
    ]
    assert re.search(r"r1 +- +code_mode +ended +completed", cli("runs", "list").out)


def test_errors_of_tools_are_printed_at_the_end_and_end_the_run_if_the_tool_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ON_TOOL_ERROR, raising=False)
    lines = MODELS.splitlines()
    first, second = (number for number, line in enumerate(lines, 1) if line == "    return {}[item]")
    ask = ("rlm", "run", "book.txt", "--prompt", "Price?", "--mode", "tools", *model("looks"), "--tool")
    done = cli(*ask, "rlm_models:price")
    assert (done.code, done.out.splitlines()[-1].split(";")[0]) == (0, "outcome: completed")
    assert done.err == f"orchestrator: tool price raised KeyError: 'A1' (rlm_models.py:{first}) ×2\n"

    done = cli(*ask, "rlm_models:strict", "--json", "--run-id", "r2")
    assert (done.code, json.loads(done.out)["reason"]) == (1, "tool_error")
    raised = f"tool price raised KeyError: 'A1' (rlm_models.py:{second})"
    assert done.err == (
        f"orchestrator: the run ended as failed (tool_error): {raised}\norchestrator: {raised} ×2\n"
    )
    shown = cli("runs", "show", "r2")
    assert (shown.code, "ended: failed (tool_error" in shown.out) == (0, True)

    done = cli("--traceback", *ask, "rlm_models:price")
    assert done.err.count(f'rlm_models.py", line {first}, in price') == 2


def test_tools_mode_answers_with_tools(cli: Cli) -> None:
    done = cli(
        "rlm", "run", "book.txt", "--prompt", 'Look up "harpoon"', "--mode", "tools", *LIBRARIAN, "--json"
    )
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (found["outcome"], found["state"], found["finish_reason"]) == ("completed", "DONE", "stop")
    assert [found["transitions"][one]["to_state"] for one in (0, -1)] == ["PROMPTING", "DONE"]
    assert "The harpoon was lost" in found["output"]
    assert [message["role"] for message in found["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert not any("white" in str(message["content"]) for message in found["messages"][:2])


def test_the_file_is_never_in_a_message(cli: Cli) -> None:
    done = cli("rlm", "run", "book.txt", "--prompt", 'What is said of "harpoon"?', *LIBRARIAN, "--json")
    messages = json.loads(done.out)["messages"]
    assert "The data is text of 78,039 characters" in messages[1]["content"]
    assert max(len(str(message["content"])) for message in messages) < 3_000


def test_json_data_is_given_as_data_and_a_file_takes_the_answer(cli: Cli, folder: Path) -> None:
    (folder / "data.json").write_text('{"b": 1, "a": 2}')
    options = ("--as-json", "--output", "answer.txt", *model("keys"))
    done = cli("rlm", "run", "data.json", "--prompt", "Which keys?", *options)
    assert (done.code, done.err) == (0, "")
    assert (folder / "answer.txt").read_text() == "a, b"
    assert "a, b" not in done.out


def typed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_the_text_may_come_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, b"A whale. A boat.")
    done = cli("rlm", "run", "-", "--prompt", '"whale"', *LIBRARIAN)
    assert (done.code, done.err) == (0, "")
    assert "\nA whale.\n" in done.out


def test_standard_input_that_is_no_text_is_refused_in_one_sentence(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, b"ab\xff")
    done = cli("rlm", "run", "-", "--prompt", "x", *LIBRARIAN)
    assert (done.code, done.out) == (2, "")
    assert done.err == "orchestrator: standard input is no text: byte 2 is not UTF-8\n"
    assert not (folder / ".orchestrator").exists()


def test_the_text_is_given_as_it_is_also_where_its_lines_end_otherwise(cli: Cli, folder: Path) -> None:
    (folder / "dos.txt").write_bytes(b"a\r\nb\rc\n")
    done = cli("rlm", "run", "dos.txt", "--prompt", "x", *model("shows"), "--json")
    assert json.loads(done.out)["output"] == repr("a\r\nb\rc\n")


def test_limits_hold_for_questions_and_are_told_to_the_code(cli: Cli) -> None:
    prompt = ("rlm", "run", "book.txt", "--prompt", "ask", *model("asks"), "--json")
    found = json.loads(cli(*prompt, "--limit", "max_sub_calls=2").out)
    assert found["output"] == "yes; yes; sub_calls: 2 of 2 used"
    assert (found["sub_calls"], found["usage"]["input_tokens"]) == (2, 21)
    found = json.loads(cli(*prompt, "--sub-model", "python:rlm_models:other").out)
    assert found["output"] == "; ".join(["answered by the other one"] * 3)


def test_a_run_that_never_answers_ends_at_its_limit_of_turns(cli: Cli) -> None:
    done = cli("rlm", "run", "book.txt", "--prompt", "x", *model("never_done"), "--limit", "max_iterations=2")
    assert done.code in {3, 4}
    assert "max_iterations" in done.err
    assert "2 turns" in done.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("nowhere.txt",), "nowhere.txt"),
        (("binary",), "binary is no text: byte 0 is not UTF-8"),
        (("book.txt", "--as-json"), "book.txt is no JSON"),
        (("book.txt", "--mode", "talk"), "Invalid value for '--mode'"),
        (("book.txt", "--tool", "rlm_models:double"), "--tool goes with --mode tools"),
        (("book.txt", "--limit", "max_turns=3"), "max_turns"),
        (("book.txt", "--limit", "max_iterations=-1"), "max_iterations"),
        (("book.txt", "--repl-limit", "memory=3"), "memory"),
        (("book.txt", "--repl-limit", "memory_bytes=1000"), "at least 67,108,864"),
        (("book.txt", "--repl-limit", "seconds=3"), "is --limit code_seconds="),
        (("book.txt", "--prompt", " "), "the prompt is empty"),
        (("book.txt", "--model", "nobody:x"), "unknown model 'nobody:x'"),
        (("book.txt", "--sub-model", "nobody:x"), "unknown model 'nobody:x'"),
        (("book.txt", "--output", "no/where"), "there is no folder no"),
        (("book.txt", "--least", "iron"), "Invalid value for '--least'"),
        (("book.txt", "--run-id", "-x"), "which no route or command line can name"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_nothing_is_begun(
    cli: Cli, folder: Path, options: tuple[str, ...], said: str
) -> None:
    (folder / "binary").write_bytes(b"\xff\xfe")
    done = cli("rlm", "run", "--prompt", "x", *LIBRARIAN, *options)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (folder / ".orchestrator").exists()


def test_a_level_that_cannot_be_had_ends_the_run_with_what_is_missing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.cli.rlm import run as made
    from orchestrator.repl import Level, Sandbox

    weak = Sandbox(least=Level.FULL, locks=frozenset({"limits"}))
    monkeypatch.setattr(made, "Sandbox", lambda least: weak)
    done = cli("rlm", "run", "book.txt", "--prompt", "x", *LIBRARIAN, "--least", "full")
    assert done.code == 1
    assert "run at isolation level limits here, full is required; still reachable: files, network" in done.err


def test_a_killed_run_goes_on_and_runs_the_code_of_its_turn_again(start: Start, cli: Cli) -> None:
    running = start("rlm", "run", "book.txt", "--prompt", "x", *model("hangs_once"), "--run-id", "r1")
    until(running, "here it is")
    running.kill()
    running.wait()
    assert "orchestrator rlm resume r1" in cli("runs", "show", "r1").out
    assert "orchestrator rlm resume r1" in cli("runs", "resume", "r1").err
    done = cli("rlm", "resume", "r1", "--json")
    found = json.loads(done.out)
    assert (done.code, found["outcome"]) == (0, "completed")
    assert found["output"] == "78039 characters, kept: True"
    again = cli("rlm", "resume", "r1")
    assert (again.code, found["output"] in again.out) == (0, True)


def test_only_runs_of_a_mode_are_resumed_here(cli: Cli) -> None:
    cli("run", "hello", "--model", "python:models:answers", "--run-id", "loop-run")
    done = cli("rlm", "resume", "loop-run")
    assert done.code == 2
    assert "belongs to graph 'llm_loop': `orchestrator runs resume loop-run` resumes it" in done.err


def test_ctrl_c_cancels_a_run_in_the_middle_of_its_code(start: Start, cli: Cli) -> None:
    running = start("rlm", "run", "book.txt", "--prompt", "x", *model("loops"), "--run-id", "r1")
    until(running, "PROMPTING -> EXECUTING")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=90)
    assert running.returncode == 6, (out, err)
    assert "Traceback" not in err
    assert re.search(r"r1 +- +code_mode +ended +cancelled", cli("runs", "list").out)

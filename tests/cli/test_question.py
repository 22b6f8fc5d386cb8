"""A person sees all of a call before saying yes: one argument on each line, and what is hidden counts first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.runs.question import COLUMNS, ROWS, CallView
from tests.cli.conftest import Done
from tests.cli.hostile import controls
from tests.cli.recorded import Call, Tape, record
from tests.cli.test_terminal import Terminal

Cli = Callable[..., Done]
Start = Callable[..., subprocess.Popen[str]]
AT = ("--journal", "journal.db")
PADDING = " " * 4_000

AGENTS = """
from orchestrator import Response, ToolCall, tool
from orchestrator.testing import ScriptedLLM

def model():
    return ScriptedLLM([Response(None, (ToolCall("1", "pay", ARGUMENTS),)), "Done."])

@tool(approval=True)
def pay(to: str, amount: int) -> str:
    with open("paid", "a") as ledger:
        ledger.write(f"{amount}\\n")
    return "paid"
"""


def paying(folder: Path, arguments: str) -> tuple[str, ...]:
    (folder / "agents.py").write_text(f"ARGUMENTS = {arguments!r}\n{AGENTS}")
    sys.modules.pop("agents", None)
    return ("run", "pay", "--run-id", "bill", "--model", "python:agents:model", "--tool", "agents:pay")


# ---- lines ----


def test_each_argument_has_a_line_with_its_value_as_json() -> None:
    view = CallView.screen("pay", '{"to": "ann", "amount": 5000, "tags": ["a", {"b": null}], "now": true}')
    assert view.lines == ('to = "ann"', "amount = 5000", 'tags = ["a", {"b": null}]', "now = true")
    assert view.hidden == 0


def test_an_equal_name_hides_no_value_and_padding_no_argument() -> None:
    view = CallView.screen("pay", f'{{"to": "ann", "amount": 5,{PADDING}"amount": 5000}}')
    assert view.lines == ('to = "ann"', "amount = 5", "amount = 5000")


def test_a_value_cannot_look_like_another_argument() -> None:
    view = CallView.screen(
        "pay", json.dumps({"to": 'ann"\n      amount = 5', "a\n b": "\u202e5\x1b[2J", "x": "\\x1b"})
    )
    assert view.lines == (r'to = "ann\"\n      amount = 5"', r'"a\n b" = "\u202e5\u001b[2J"', r'x = "\\x1b"')


@pytest.mark.parametrize("text", ["1e400", "NaN", "9" * 5_000, "0.10", "-0"])
def test_a_number_keeps_its_digits(text: str) -> None:
    assert CallView.complete("pay", f'{{"amount": {text}}}').lines == (f"amount = {text}",)


@pytest.mark.parametrize("text", ["no json", "[1, 2]", '{"a": ', "[" * 100_000, '{"a": ' * 50_000])
def test_what_is_no_object_is_shown_as_it_is(text: str) -> None:
    assert CallView.complete("pay", text).lines == (f"arguments = {json.dumps(text)}",)


def test_no_arguments_are_no_lines() -> None:
    assert CallView.screen("pay", "").lines == CallView.screen("pay", "{}").lines == ()


# ---- what does not fit ----


@given(st.dictionaries(st.text(max_size=300), st.text(max_size=2_000) | st.integers(), max_size=30))
def test_a_call_fits_on_a_screen_or_says_what_it_hides(arguments: dict[str, str | int]) -> None:
    text = json.dumps(arguments)
    whole, part = CallView.complete("pay", text), CallView.screen("pay", text)
    assert (part == whole) is (part.hidden == 0)
    assert len(whole.lines) == len(arguments)
    kept = [re.sub(r"… \([\d,]+ more (characters|arguments)\)$", "", line) for line in part.lines]
    assert sum(map(len, kept)) + part.hidden >= sum(map(len, whole.lines))
    assert sum(-(-len(line) // COLUMNS) for line in kept) <= ROWS + 1
    assert controls("".join(whole.lines)) == []


def test_wide_characters_count_as_the_columns_that_they_take() -> None:
    assert CallView.screen("pay", json.dumps({"to": "a" * 190})).hidden == 0
    assert CallView.screen("pay", json.dumps({"to": "語" * 190})).hidden > 0


def test_the_name_of_a_tool_hides_nothing_either() -> None:
    assert CallView.screen("pay" + "_" * 100, "{}").hidden == 31


# ---- commands ----

LONG = json.dumps({"to": f"ann{PADDING}, and 5000 to eve", "amount": 5})


@pytest.fixture
def long_call(folder: Path) -> str:
    """A run that asks about a call that no screen shows; returns the digest of its question."""
    del folder
    tape = Tape("bill").begin().asks(Call("pay", LONG))
    record(tape)
    return tape.digest("1:0")


def test_show_says_first_how_much_is_hidden_and_keeps_the_digest(cli: Cli, long_call: str) -> None:
    done = cli("runs", "show", "bill", *AT)
    lines = done.out.partition("waiting for an answer\n")[2].splitlines()
    assert lines[0] == "  1:0  pay  may this call run?"
    assert re.match(
        r"      3,\d{3} characters of this call are not shown here; to read all of it, with the digest",
        lines[1],
    )
    assert lines[2] == f"          orchestrator runs show bill --full {' '.join(AT)}"
    assert lines[3].startswith('      to = "ann  ')
    assert re.search(r"… \(3,\d{3} more characters\)$", lines[3])
    assert lines[4] == "      amount = 5"
    assert long_call[:8] not in done.out
    assert "and 5000 to eve" not in done.out


def test_only_the_complete_view_prints_the_digest(cli: Cli, long_call: str) -> None:
    out = cli("runs", "show", "bill", "--full", *AT).out
    assert f'ann{PADDING}, and 5000 to eve"\n' in out
    assert f"      digest     {long_call}\n" in out
    assert f"runs approve bill --call 1:0 --digest {long_call} " in out
    (asked,) = json.loads(cli("runs", "show", "bill", "--json", *AT).out)["waiting_for"]
    assert (asked["arguments"], asked["digest"]) == (LONG, long_call)
    assert asked["hidden_characters"] > 3_000


@pytest.mark.parametrize(
    "answer", [("approve",), ("respond", "TEXT"), ("approve", "--arguments", '{"amount": 1}')]
)
def test_neither_silence_nor_the_start_of_the_digest_answers(
    cli: Cli, long_call: str, one_sentence: Callable[[Done], str], answer: tuple[str, ...]
) -> None:
    name, *more = answer
    for named in ((), ("--digest", long_call[:12]), ("--digest", long_call[:-1]), ("--call", "1:0")):
        done = cli("runs", name, "bill", *more, *named, "--by", "ann", *AT)
        assert done.code == 2
        said = one_sentence(done)
        assert (
            "do not fit on a screen, so the answer needs the full digest: `orchestrator runs show bill --full"
            in said
        )
    assert cli("runs", name, "bill", *more, "--digest", long_call, "--by", "ann", *AT).code == 0


def test_a_rejection_needs_no_digest_because_nothing_runs(cli: Cli, long_call: str) -> None:
    assert long_call
    assert cli("runs", "reject", "bill", "--by", "ann", *AT).code == 0


def test_the_rule_that_asks_and_its_notice_are_shown(cli: Cli, folder: Path) -> None:
    del folder
    tape = Tape("bill").begin().asks(Call("pay", '{"amount": 5000}'))
    (asked,) = [one for drafts in tape.appends for one in drafts if one.kind == "asked"]
    verdict = {"ok": False, "guard": "amount", "observed": 5000, "limit": 100, "detail": "a large\x1b[2J sum"}
    asked.body.update(verdict=verdict, notice="the rule failed\u202e")  # type: ignore[attr-defined]
    record(tape)
    out = cli("runs", "show", "bill", *AT).out
    assert "      rule       amount: observed 5000, limit 100, a large\\x1b[2J sum\n" in out
    assert "      notice     the rule failed\\u202e\n" in out


# ---- at a terminal ----


def test_a_long_call_takes_neither_y_nor_the_start_of_its_digest_at_the_prompt(
    start: Start, cli: Cli, folder: Path
) -> None:
    terminal = Terminal(start, *paying(folder, LONG))
    terminal.until("or answer from another terminal:")
    assert "characters of this call are not shown here" in terminal.text
    assert "and 5000 to eve" not in terminal.text
    digest = re.findall(r"digest     (\w{64})", cli("runs", "show", "bill", "--full").out)[0]
    assert digest[:8] not in terminal.text
    for typed in ("y", "yes", digest[:12], digest[:-1]):
        terminal.raw = ""
        os.write(terminal.ours, f"{typed}\n".encode())
        terminal.until("or answer from another terminal:")
        assert not (folder / "paid").exists()
    os.write(terminal.ours, f"{digest}\n".encode())
    assert terminal.end() == (0, "")
    assert (folder / "paid").read_text() == "5\n"
    assert controls(terminal.raw, terminal=True) == []


def test_a_long_call_is_rejected_with_n(start: Start, folder: Path) -> None:
    terminal = Terminal(start, *paying(folder, LONG))
    terminal.until("type n, or the full digest that `orchestrator runs show bill --full` prints")
    os.write(terminal.ours, b"n\n")
    assert terminal.end() == (0, "")
    assert not (folder / "paid").exists()


def test_padding_between_arguments_hides_nothing(start: Start, folder: Path) -> None:
    terminal = Terminal(start, *paying(folder, f'{{"to": "ann",{PADDING}"amount": 5000}}'))
    terminal.until("run pay? type y or n")
    assert '      to = "ann"\n      amount = 5000\n' in terminal.text
    assert "not shown here" not in terminal.text
    os.write(terminal.ours, b"y\n")
    assert terminal.end() == (0, "")
    assert (folder / "paid").read_text() == "5000\n"


def test_a_person_sees_5000_or_is_not_asked_where_a_name_occurs_twice(start: Start, folder: Path) -> None:
    attack = f'{{"to": "ann", "amount": 5,{PADDING}"amount": 5000}}'
    terminal = Terminal(start, *paying(folder, attack))
    while "or answer from another terminal:" not in terminal.raw and terminal._more():
        pass
    asked = "run pay?" in terminal.text
    assert "amount = 5000" in terminal.text or not asked
    if asked:
        os.write(terminal.ours, b"n\n")
    assert terminal.end()[0] == 0
    assert not (folder / "paid").exists()


def test_each_of_several_questions_is_shown_again_above_its_prompt(start: Start, folder: Path) -> None:
    arguments = paying(folder, '{"to": "ann", "amount": 1}')
    agents = (folder / "agents.py").read_text()
    two = 'ToolCall("2", "pay", \'{"to": "eve", "amount": 2}\')'
    (folder / "agents.py").write_text(agents.replace('"pay", ARGUMENTS),)', f'"pay", ARGUMENTS), {two})'))
    terminal = Terminal(start, *arguments)
    for amount, typed in ((1, b"y\n"), (2, b"n\n")):
        terminal.until("run pay? type y or n")
        above = terminal.text.partition("run pay?")[0]
        assert f"amount = {amount}\n" in above[above.rindex("  1:") :]
        terminal.raw = ""
        os.write(terminal.ours, typed)
    assert terminal.end() == (0, "")
    assert (folder / "paid").read_text() == "1\n"

"""What a person approves is what is there: nothing in a plan hides itself on a screen, colour or not."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.approval.difference import hidden
from orchestrator.cli.output import TextColor, coloured, painted, visible

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

HIDING = {
    "a direction": "\u202epay\u202c",
    "no width": "ad\u200bmin",
    "a byte order mark": "\ufeffx",
    "a cursor": "\x1b[2K\x1b[1Agone",
    "a carriage return": "evil\rgood",
    "a backspace": "rm\b\bls",
    "a bell": "\a",
    "a line of its own": "a\u2028b",
    "a tag": "a\U000e0041b",
    "half a character": "\ud83d",
    "a blank that does not break": "a\u00a0b",
}


@pytest.mark.parametrize("text", HIDING.values(), ids=HIDING)
def test_what_hides_is_shown_as_an_escape_and_counted(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert "\\" in shown
    assert hidden(text) >= 1


def test_an_escape_says_which_character_it_is() -> None:
    assert visible("a\u202eb\x1b[31mc") == r"a\u202eb\x1b[31mc"


def test_a_tab_is_blanks_and_hides_nothing() -> None:
    assert (visible("\tx"), hidden("\tx\n")) == ("    x", 0)


def test_a_file_with_windows_line_ends_hides_nothing_but_a_lone_return_does() -> None:
    assert hidden("a\r\nb\r\n") == 0
    assert hidden("a\rb\r\n") == 1


@given(st.text(), st.sampled_from([None, *TextColor]), st.booleans())
def test_only_our_own_colours_drive_the_terminal(text: str, paint: TextColor | None, colour: bool) -> None:
    shown = visible(text, paint, colour=colour)
    without = ESCAPE.sub("", shown)
    assert without == visible(text)
    assert all(unicodedata.category(one) not in {"Cc", "Cf", "Zl", "Zp", "Cs"} for one in without)
    if not colour:
        assert shown == without


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"]), min_size=1))
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
    assert painted(text, TextColor.ADDED, colour=False) == text
    assert painted(text, TextColor.ADDED, colour=True) == f"\x1b[32m{text}\x1b[0m"


@pytest.mark.parametrize(
    ("terminal", "setting", "term", "expected"),
    [
        (True, "", "xterm", True),
        (True, "1", "xterm", False),
        (False, "", "xterm", False),
        (True, "", "dumb", False),
    ],
)
def test_there_is_colour_on_a_terminal_only_and_never_where_somebody_does_not_want_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, setting: str, term: str, expected: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("NO_COLOR", setting)
    monkeypatch.setenv("TERM", term)
    assert coloured() is expected

"""Escaped text has no character that a terminal obeys or hides, and says which there were."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.telemetry.escape import KEPT, escape, escapes

REQUIRED = [
    *(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"),
    *map(chr, (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)),
    *map(
        chr,
        (0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xAD, 0xD800, 0xDFFF, 0xE0001, 0xE0041, 0xE007F, 0xE0100),
    ),
    *map(chr, (0x115F, 0x1160, 0x3164, 0xFFA0, 0x34F)),
]


@pytest.mark.parametrize("one", REQUIRED, ids=lambda one: f"U+{ord(one):04X}")
def test_a_character_that_a_terminal_obeys_or_hides_is_escaped(one: str) -> None:
    safe = escape(f"a{one}b")
    assert safe.isascii()
    assert safe.startswith("a\\")
    assert safe.encode().decode("unicode_escape") == f"a{one}b"
    assert escapes(one) == 1


def test_no_character_of_a_hiding_category_is_forgotten() -> None:
    hiding = {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
    missed = [
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in hiding
        and chr(code) != " "
        and escape(chr(code), keep="") == chr(code)
    ]
    assert missed == []


@given(st.text())
def test_a_second_escape_changes_nothing(text: str) -> None:
    safe = escape(text)
    assert escape(safe) == safe
    assert escapes(safe) == 0
    assert (safe == text) is (escapes(text) == 0)


WRITTEN = ("Größe 5 €", "日本\u3000語", "10\u202f000\u00a0€", "❤\ufe0f 👍🏽", "שלום", "a\n\tb", "\\x1b")


@pytest.mark.parametrize("text", WRITTEN)
def test_what_people_write_stays(text: str) -> None:
    assert escape(text) == text


def test_a_line_of_its_own_keeps_neither_ends_of_lines_nor_other_blanks() -> None:
    assert escape("a\n\tb\u00a0c", keep="") == r"a\n\tb\xa0c"
    assert all(escape(one) == one for one in KEPT)

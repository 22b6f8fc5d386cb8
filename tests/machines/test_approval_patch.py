"""Unified diffs: exactly or not at all, against Python's own maker of diffs and against GNU patch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.machines.approval.patch import PatchMismatch, PatchUnreadable, make, named, parse, split

LINES = st.lists(
    st.sampled_from(["", "a", "b", "ä\u2028", "c\r", "\x0c", "+", "-x", "@@ -1 +1 @@", "\\ No"]), max_size=12
)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(["", "\n"]))
DIFF = "@@ -2,3 +2,3 @@ def f\n two\n-three\n+drei\n four\n"
TEXT = "one\ntwo\nthree\nfour\nfive\n"


@given(before=TEXTS, after=TEXTS, context=st.integers(0, 4))
def test_the_diff_between_two_texts_makes_one_of_the_other(before: str, after: str, context: int) -> None:
    assume(before != after)
    patch = parse(make("a.txt", before, after, context=context))
    assert patch.apply(before) == after
    assert (named(patch.old or ""), named(patch.new or "")) == ("a.txt", "a.txt")


@given(before=TEXTS, after=TEXTS)
def test_a_diff_and_its_reverse_take_each_other_back(before: str, after: str) -> None:
    assume(before != after)
    there, back = parse(make("a", before, after)), parse(make("a", after, before))
    assert back.apply(there.apply(before)) == before


@given(before=TEXTS, after=TEXTS, other=TEXTS)
def test_another_text_is_refused_or_the_lines_that_the_diff_names_are_where_it_says(
    before: str, after: str, other: str
) -> None:
    assume(before != after)
    patch = parse(make("a", before, after))
    lines = split(other)
    try:
        made = patch.apply(other)
    except PatchMismatch:
        return
    for hunk in patch.hunks:
        begin = hunk.start - 1 if hunk.before else hunk.start
        assert tuple(lines[begin : begin + len(hunk.before)]) == hunk.before
    grown = sum(len(hunk.after) - len(hunk.before) for hunk in patch.hunks)
    assert len(split(made)) == len(lines) + grown


@given(before=TEXTS, after=TEXTS, at=st.integers(0), letter=st.sampled_from("x \n+-@\\0"))
def test_a_damaged_diff_is_refused_or_read_never_worse(before: str, after: str, at: int, letter: str) -> None:
    text = make("a", before, after)
    assume(text)
    at %= len(text)
    try:
        parse(text[:at] + letter + text[at + 1 :]).apply(before)
    except (PatchUnreadable, PatchMismatch):
        return


@pytest.mark.system("patch")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TEXT, TEXT.replace("three", "drei")),
        ("", "new\n"),
        ("a\nb", "a\nb\n"),
        ("a\nb\n", "a\nb"),
        ("one\n" * 30, "one\n" * 15 + "two\n" + "one\n" * 15),
        (TEXT, ""),
    ],
)
def test_gnu_patch_makes_the_same_of_it(before: str, after: str, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(before)
    diff = make("a.txt", before, after)
    command = ["patch", "--fuzz=0", "--posix", str(file)]
    subprocess.run(command, input=diff, text=True, check=True, capture_output=True)
    assert (file.read_text() if file.exists() else "") == after == parse(diff).apply(before)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("two", "TWO"),
        TEXT.replace("four", "four "),
        "zero\n" + TEXT,
        TEXT.replace("\n", "\r\n"),
        "one\ntwo\nthree\n",
        "",
    ],
)
def test_context_that_differs_by_anything_is_refused_and_nothing_is_guessed(text: str) -> None:
    with pytest.raises(PatchMismatch, match="hunk 1"):
        parse(DIFF).apply(text)


@pytest.mark.parametrize(
    ("diff", "why"),
    [
        ("", "no hunk"),
        ("--- a/x\n", "must follow the line"),
        ("--- a/x\n+++ b/x\n", "no hunk"),
        ("three\n", "is not a hunk header"),
        (DIFF.replace("-2,3", "-2,4"), "has 3 old"),
        (DIFF.replace("+2,3", "+2,2"), "beyond the number of lines"),
        (DIFF + "more\n", "is not a hunk header"),
        (DIFF.replace(" two", "*two"), "starts with"),
        ("@@ -0,1 +1 @@\n-a\n+b\n", "line 0"),
        ("@@ -1 +1 @@\n\\ No newline at end of file\n-a\n+b\n", "starts with"),
    ],
)
def test_what_is_no_diff_is_unreadable(diff: str, why: str) -> None:
    with pytest.raises(PatchUnreadable, match=why):
        parse(diff)


def test_hunks_that_overlap_or_go_back_are_refused() -> None:
    with pytest.raises(PatchMismatch, match="hunk 2 starts before"):
        parse(DIFF + "@@ -1 +1 @@\n-one\n+eins\n").apply(TEXT)


def test_an_end_that_is_missing_may_only_be_the_last() -> None:
    with pytest.raises(PatchMismatch, match="without a line end"):
        parse("@@ -1 +1 @@\n-one\n+eins\n\\ No newline at end of file\n").apply(TEXT)


def test_a_diff_that_lost_its_last_line_end_is_the_same_diff() -> None:
    assert parse(DIFF.rstrip("\n")).apply(TEXT) == parse(DIFF).apply(TEXT) == TEXT.replace("three", "drei")


def test_an_empty_line_of_context_may_have_lost_its_blank() -> None:
    assert parse("@@ -1,2 +1,2 @@\n\n-b\n+c\n").apply("\nb\n") == "\nc\n"

"""Plans as data: what they are digested to, what a part of one needs; the table of errors; what confidence allows.

Diffs are applied exactly or not at all, against Python's own maker of diffs and against GNU patch.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.errors import ERROR_KINDS, ConfigError
from orchestrator.llm.retry import classify
from orchestrator.machines.approval.fault import (
    RULES,
    ApprovalError,
    Fault,
    FaultFamily,
    FaultSeverity,
    RecoveryPath,
    rule,
)
from orchestrator.machines.approval.limits import PlanCaps
from orchestrator.machines.approval.patch import PatchMismatch, PatchUnreadable, make, named, parse, split
from orchestrator.machines.approval.plan import (
    ApprovalPlan,
    Extraction,
    Fingerprint,
    Intent,
    IntentKind,
    PlanDraft,
    StepOutcome,
    Strength,
    decide_confidence,
    part,
    selection,
)
from orchestrator.machines.approval.rules import folded, path_faults
from orchestrator.runtime.approval.plan_executor import RETRIES


def step(number: int, *paths: str, needs: tuple[int, ...] = ()) -> dict[str, Any]:
    files = [{"path": path, "content": "x"} for path in paths]
    return {"id": str(number), "kind": "create", "files": files, "depends_on": [str(one) for one in needs]}


def plan(*steps: dict[str, Any]) -> ApprovalPlan:
    return ApprovalPlan.read({"id": "plan-1", "version": 1, "goal": "g", "steps": list(steps)})


# ---- the table of errors ----

FIGURES = {
    "AI-002": (3, (1.0, 2.0, 4.0)),
    "AI-003": (3, (1.0, 2.0, 4.0)),
    "AI-005": (1, (0.0,)),
    "VAL-003": (1, (0.0,)),
    "VAL-004": (2, (0.0, 0.0)),
    "VAL-005": (1, (0.0,)),
    "FS-005": (3, (5.0, 5.0, 5.0)),
    "BLD-004": (1, (1.0,)),
    "RES-003": (1, (1.0,)),
    "IPC-006": (1, (0.0,)),
    "IPC-008": (1, (1.0,)),
}
"""Retries and delays, as the knowledge base of seed 001 has them."""


def test_each_code_is_tried_again_as_often_as_the_knowledge_base_says_and_no_other_is() -> None:
    assert {row.code for row in RULES.values() if row.retryable} == FIGURES.keys() == RETRIES.policies.keys()
    for code, (retries, delays) in FIGURES.items():
        policy = RETRIES.policies[code]
        exact = tuple(min(policy.base * 2**n, policy.max_delay or policy.base) for n in range(retries))
        assert (policy.attempts, exact, policy.jitter) == (retries + 1, delays, 0.0)
    assert RULES["AI-003"].most == 30.0


def test_every_row_has_a_code_of_a_family_a_meaning_of_its_own_and_a_way_out() -> None:
    assert {code.partition("-")[0] for code in RULES} == set(FaultFamily.__members__)
    assert all(re.fullmatch(r"[A-Z]{2,3}-\d{3}", code) for code in RULES)
    assert len({row.meaning for row in RULES.values()}) == len(RULES)
    assert {row.recovery_path for row in RULES.values()} == set(RecoveryPath)
    assert {row.code for row in RULES.values() if row.severity is FaultSeverity.FATAL} == {"ST-001", "ST-002"}
    assert {row.kind for row in RULES.values()} <= ERROR_KINDS


@pytest.mark.parametrize("code", RULES)
def test_an_error_object_says_all_that_the_table_says_and_is_read_back(code: str) -> None:
    fault = Fault(code, "what happened", "detail", "a.py", "1")
    plain = json.loads(json.dumps(fault.plain()))
    wanted = {
        "code",
        "category",
        "severity",
        "message",
        "technical_detail",
        "recovery_path",
        "retryable",
        "retry_policy",
    }
    assert wanted <= plain.keys()
    assert Fault.of(plain) == fault
    error = ApprovalError(fault)
    assert classify(error).retryable is rule(code).retryable


def test_an_unknown_code_is_refused_with_the_families() -> None:
    with pytest.raises(ConfigError, match="families: VAL, FS, AI, BLD, ST, RES, SEC, CFG, IPC"):
        Fault("XX-001", "what")


def test_a_retry_after_reaches_the_retry_layer() -> None:
    assert classify(ApprovalError(Fault("AI-003", "slow"), retry_after=7.0)).retry_after == 7.0


# ---- plans ----


def test_a_digest_changes_with_everything_that_a_person_approves() -> None:
    one = plan(step(1, "a"))
    others = [
        plan(step(1, "b")),
        one.model_copy(update={"version": 2}),
        one.model_copy(update={"id": "plan-2"}),
        one.model_copy(update={"goal": "h"}),
        one.model_copy(update={"targets": (Fingerprint(path="a", sha256="0" * 64, size=1),)}),
        one.model_copy(update={"outcomes": (StepOutcome(step="1"),)}),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == len(others) + 1
    assert ApprovalPlan.read(json.loads(json.dumps(one.plain()))).digest == one.digest


def test_what_must_be_in_a_file_follows_from_the_steps_that_are_done() -> None:
    before, first, second = (Fingerprint(path="a", sha256=letter * 64, size=1) for letter in "abc")
    outcomes = (StepOutcome(step="1", files=(first,)), StepOutcome(step="2", files=(second,)))
    made = plan(step(1, "a"), step(2, "a")).model_copy(update={"targets": (before,), "outcomes": outcomes})
    assert [made.expected(done)["a"] for done in ((), ("1",), ("1", "2"))] == [before, first, second]
    assert made.results == (second,)


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        (["1"], ("1",)),
        (["2"], ("1", "2")),
        (["3"], ("3",)),
        (["4"], ("1", "2", "4")),
        (["5"], ("3", "5")),
        (["5", "2"], ("1", "2", "3", "5")),
        (["5", "4", "3", "2", "1"], ("1", "2", "3", "4", "5")),
    ],
)
def test_a_chosen_step_takes_along_what_it_names_and_whoever_touched_its_files(
    chosen: list[str], taken: tuple[str, ...]
) -> None:
    whole = plan(step(1, "a"), step(2, "b", needs=(1,)), step(3, "c"), step(4, "b"), step(5, "c", "d"))
    assert selection(whole, chosen) == taken
    assert [one.id for one in part(whole, taken).steps] == list(taken)


@given(st.data())
def test_a_selection_is_closed_and_nothing_is_taken_that_nobody_needs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    steps = [
        step(
            number,
            *data.draw(st.lists(st.sampled_from("abcd"), max_size=2, unique=True)),
            needs=tuple(data.draw(st.lists(st.integers(1, number - 1), max_size=2))) if number > 1 else (),
        )
        for number in range(1, count + 1)
    ]
    whole = plan(*steps)
    chosen = data.draw(st.lists(st.sampled_from([one.id for one in whole.steps]), min_size=1, unique=True))
    taken = selection(whole, chosen)
    assert set(chosen) <= set(taken)
    assert selection(whole, taken) == taken
    for one in set(taken) - set(chosen):
        rest = [other for other in taken if other != one]
        assert one in selection(whole, rest)


@pytest.mark.parametrize("chosen", [["9"], [], ["1", "x"]])
def test_a_step_that_is_not_there_cannot_be_chosen(chosen: list[str]) -> None:
    with pytest.raises(ApprovalError, match="VAL-019"):
        selection(plan(step(1, "a")), chosen)


def test_a_draft_cannot_be_changed() -> None:
    draft = PlanDraft.read({"steps": [step(1, "a")]})
    with pytest.raises(ValidationError):
        draft.steps[0].id = "2"  # type: ignore[misc]


# ---- paths ----


@given(st.text(max_size=40))
@example("a\xa0b.py")
@example("a\u3000b.py")
def test_a_path_is_refused_or_has_one_plain_spelling_below_the_project(path: str) -> None:
    if list(path_faults(path, PlanCaps())):
        return
    parts = path.split("/")
    assert not path.startswith(("/", "~"))
    assert path.isprintable()
    assert not {"", ".", ".."} & set(parts)
    assert not any(folded(part).startswith(".") for part in parts[:-1])


@pytest.mark.parametrize(
    "path",
    [
        "a.py",
        "src/ünï.py",
        "src/[id]/page.tsx",
        ".gitignore",
        "docs/日本.md",
        "a b.txt",
        "src/a~b.py",
        "x" * 255,
    ],
)
def test_ordinary_paths_are_allowed(path: str) -> None:
    assert list(path_faults(path, PlanCaps())) == []


# ---- intents ----


@pytest.mark.parametrize(
    ("confidence", "allowed"),
    [
        (1.0, "proceed"),
        (0.85, "proceed"),
        (0.849, "confirm"),
        (0.60, "confirm"),
        (0.599, "reject"),
        (0.0, "reject"),
    ],
)
def test_confidence_decides_whether_to_go_on_to_ask_or_neither(confidence: float, allowed: str) -> None:
    assert decide_confidence(Intent(kind=IntentKind.FIX_BUG, summary="s", confidence=confidence)) == allowed


def test_an_unknown_intent_is_never_gone_on_with_unasked() -> None:
    assert decide_confidence(Intent(kind=IntentKind.UNKNOWN, summary="s", confidence=1.0)) == "confirm"


def test_an_intent_is_read_with_its_constraints_and_read_back() -> None:
    plain = {
        "kind": "AddFeature",
        "summary": "greet",
        "confidence": 0.9,
        "constraints": [{"strength": one, "text": "x"} for one in ("MUST", "MUST_NOT", "PREFER")],
    }
    intent = Intent.read(plain)
    assert [one.strength for one in intent.constraints] == list(Strength)
    assert Intent.read(intent.plain()) == intent


@pytest.mark.parametrize(
    "wrong",
    [
        {"confidence": 1.1},
        {"confidence": -0.1},
        {"confidence": float("nan")},
        {"confidence": "sure"},
        {"kind": "Destroy"},
        {"summary": ""},
        {"extra": 1},
        {"constraints": [{"strength": "SHOULD", "text": "x"}]},
    ],
)
def test_an_intent_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ApprovalError, match="VAL-002"):
        Intent.read({"kind": "FixBug", "summary": "s", "confidence": 0.9, **wrong})


def test_an_extraction_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        Extraction(intents=())


# ---- caps ----


@pytest.mark.parametrize(
    "wrong", [{"steps": -1}, {"files": 1.5}, {"stepz": 1}, {"command_seconds": float("nan")}]
)
def test_caps_out_of_range_or_unknown_are_refused_in_a_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PlanCaps(**wrong)


# ---- diffs ----


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

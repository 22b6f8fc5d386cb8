"""Which question an answer is about, and why one does not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from orchestrator_guards import (
    Refusal,
    approval_digest,
    describe_answer,
    judge_answer,
    repeats_answer,
    stale_approval,
)

DIGEST = "0123456789abcdef"


class Question(NamedTuple):
    key: str
    digest: str = DIGEST
    expires_at: float = 0.0


ONE, TWO = Question("1:0"), Question("1:1", digest="fedcba9876543210")
LATE = Question("1:0", expires_at=100.0)
ANN: Mapping[str, Mapping[str, Any]] = {
    "0:0": {"by": "bob", "decision": "reject"},
    "1:2": {"by": "ann", "decision": "approve"},
}


@pytest.mark.parametrize(
    ("asked", "answer", "found"),
    [
        ([ONE], {}, ONE),
        ([ONE], {"call": "1:0"}, ONE),
        ([ONE], {"call": "1:0", "digest": DIGEST}, ONE),
        ([ONE], {"digest": DIGEST[:8]}, ONE),
        ([TWO], {"digest": TWO.digest[:8].upper()}, TWO),
        ([ONE, TWO], {"call": "1:1"}, TWO),
        ([ONE, TWO], {"end": True}, ONE),
        ([ONE, TWO], {"end": True, "call": "1:1"}, TWO),
        ([LATE], {}, LATE),
    ],
)
def test_an_answer_is_about_the_one_question_it_fits(
    asked: list[Question], answer: dict[str, Any], found: Question
) -> None:
    assert judge_answer(asked, {}, answer, now=99.9) is found


@pytest.mark.parametrize(
    ("asked", "answer", "kind", "why"),
    [
        ([], {"call": "3:0"}, "unasked", "nothing is asked about call '3:0'"),
        ([ONE], {"call": "3:0"}, "unasked", "nothing is asked about call '3:0'"),
        ([ONE], {"call": "3:0", "end": True}, "unasked", "nothing is asked about call '3:0'"),
        ([ONE], {"call": "1:2"}, "answered", "ann answered before (approve)"),
        ([], {}, "answered", "ann answered before (approve)"),
        ([], {"end": True}, "answered", "ann answered before (approve)"),
        ([ONE, TWO], {}, "several", "several calls wait, name one: 1:0, 1:1"),
        ([ONE, TWO], {"end": True, "digest": DIGEST}, "several", "several calls wait, name one: 1:0, 1:1"),
        ([LATE], {}, "stale", "it came too late: the question has expired"),
        ([LATE], {"digest": "ffffffff"}, "stale", "it came too late: the question has expired"),
        ([ONE], {"digest": "ab"}, "stale", "digest 'ab' is too short: give at least 8 characters"),
        (
            [ONE],
            {"digest": "ffffffffffff"},
            "stale",
            "it is about other arguments: ffffffff was approved, 01234567 is asked for",
        ),
    ],
)
def test_an_answer_that_fits_none_is_refused_with_the_reason(
    asked: list[Question], answer: dict[str, Any], kind: str, why: str
) -> None:
    assert judge_answer(asked, ANN, answer, now=100.0) == Refusal(kind, why)  # type: ignore[arg-type]


def test_where_nothing_was_ever_asked_that_is_said() -> None:
    assert judge_answer((), {}, {}, now=0.0) == Refusal("unasked", "it asks nothing")


PAID: Mapping[str, Any] = {
    "by": "ann",
    "decision": "approve",
    "digest": DIGEST,
    "arguments": '{"to": "x", "sum": 1}',
    "why": "due",
}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"why": "another reason"}, True),
        ({"at": 5.0, "id": "x", "number": 3}, True),
        ({"arguments": '{"sum":1,"to":"x"}'}, True),
        ({"digest": None}, True),
        ({"digest": DIGEST[:8].upper()}, True),
        ({"end": False}, True),
        ({"by": "bob"}, False),
        ({"decision": "reject"}, False),
        ({"arguments": None}, False),
        ({"arguments": '{"to": "x", "sum": 1.0}'}, False),
        ({"arguments": '{"to": "x", "sum": true}'}, False),
        ({"content": ""}, False),
        ({"end": True}, False),
        ({"digest": "f" * 16}, False),
        ({"digest": DIGEST[:4]}, False),
    ],
)
def test_an_answer_is_repeated_by_the_same_person_with_the_same_decision_and_content(
    change: dict[str, Any], same: bool
) -> None:
    assert repeats_answer(PAID, {**PAID, **change}) is same


@pytest.mark.parametrize("at", [1e300, float("inf"), float("nan"), -1e18, None])
def test_an_answer_without_a_time_of_any_calendar_is_described_without_it(at: float | None) -> None:
    assert describe_answer({"by": "ann", "decision": "reject", "end": True, "at": at}) == (
        "ann answered before (reject and end the run)"
    )


@pytest.mark.parametrize("given", [DIGEST, DIGEST.upper(), DIGEST[:8], None])
def test_a_digest_may_be_written_in_either_case_and_cut_to_eight(given: str | None) -> None:
    assert stale_approval(DIGEST, given, now=1.0, expires_at=0.0) is None


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        ('{"to": "x", "sum": 1}', "a54efee0eaedcb506659d3d679497999a86d84b8ad1b598b11eb5c09d8a49c52"),
        ("{}", "8fb7b40fcd0829ab15c386fbc5f84d8e4f8bc76c1867f43b76c663482a587c88"),
        ("no JSON", "8260f7954c25f8289073e6f3342094d43a5c5102f23987431cd2d388702a28ec"),
        (
            '{"a": "\\ud800", "b": 1e400, "c": [1.0, NaN]}',
            "fb0fedf67b36486ad673f4ce0a7ff33866e7c6c82b4289416bbd7d1c1b1c4649",
        ),
    ],
)
def test_digests_are_the_bytes_that_stored_approvals_name(arguments: str, digest: str) -> None:
    assert approval_digest("pay", arguments, run="r", call="1:0", fingerprint="f") == digest


def test_arguments_nested_too_deeply_count_as_they_are() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    one = approval_digest("pay", deep, run="r", call="1:0", fingerprint="f")
    assert one == approval_digest("pay", deep, run="r", call="1:0", fingerprint="f")
    assert one != approval_digest("pay", deep + " ", run="r", call="1:0", fingerprint="f")

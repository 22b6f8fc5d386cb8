"""Which question an answer is about, and why one does not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from orchestrator_guards import (
    DIGEST_VERSION,
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
        ([], {"call": "3:0"}, "unasked", "no question is open about call '3:0'"),
        ([ONE], {"call": "3:0"}, "unasked", "no question is open about call '3:0'"),
        ([ONE], {"call": "3:0", "end": True}, "unasked", "no question is open about call '3:0'"),
        ([ONE], {"call": "1:2"}, "answered", "ann answered before (approve)"),
        ([], {}, "answered", "ann answered before (approve)"),
        ([], {"end": True}, "answered", "ann answered before (approve)"),
        ([ONE, TWO], {}, "several", "several calls wait: name one of 1:0, 1:1"),
        (
            [ONE, TWO],
            {"end": True, "digest": DIGEST},
            "several",
            "several calls wait: name one of 1:0, 1:1",
        ),
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
    assert judge_answer((), {}, {}, now=0.0) == Refusal("unasked", "no question is open")


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


CALL: dict[str, Any] = {
    "tool": "pay",
    "arguments": '{"to": "x", "sum": 1}',
    "run": "r",
    "call": "1:0",
    "fingerprint": "f",
    "schema": {"type": "object", "properties": {"to": {"type": "string"}}},
    "effect": "irreversible",
    "approval": "always",
    "agent": "",
}


def test_a_digest_is_the_bytes_that_stored_approvals_name() -> None:
    assert DIGEST_VERSION == 2
    assert approval_digest(**CALL) == "6c6ee11c992af3a371262fcc56b632d317f12d75516bdde6a78b82ecc74883ed"


@pytest.mark.parametrize(
    "other",
    [
        {"tool": "pay2"},
        {"arguments": '{"to": "x", "sum": 10}'},
        {"arguments": '{"to":"x","sum":1}'},  # the canonical text is covered as it is
        {"run": "r2"},
        {"call": "1:1"},
        {"fingerprint": "g"},
        {"schema": {"type": "object", "properties": {"to": {"type": "integer"}}}},
        {"schema": None},
        {"effect": "idempotent"},
        {"approval": "rule"},
        {"agent": "support"},
    ],
)
def test_a_digest_covers_every_part_of_what_is_approved(other: dict[str, Any]) -> None:
    assert approval_digest(**CALL | other) != approval_digest(**CALL)


def test_the_order_of_the_members_of_a_schema_does_not_count() -> None:
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert approval_digest(**CALL | {"schema": one}) == approval_digest(**CALL | {"schema": other})


def test_a_text_that_is_no_unicode_has_a_digest_of_its_own() -> None:
    """A model can return half of a surrogate pair."""
    one, other = (approval_digest(**CALL | {"arguments": text}) for text in ('"\ud800"', '"\ud801"'))
    assert one != other


@pytest.mark.parametrize("arguments", ["{", "[" * 100_000])
def test_arguments_that_cannot_be_read_as_json_are_compared_as_text(arguments: str) -> None:
    ann = {"by": "ann", "decision": "approve", "arguments": arguments}
    assert repeats_answer(ann, dict(ann))
    assert not repeats_answer(ann, {**ann, "arguments": f"{arguments} "})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"arguments": "{}"}, "approve with edited arguments"),
        ({"end": True}, "approve and end the run"),
        ({"arguments": None, "end": False, "at": None}, "approve"),
        ({"at": 86400.5}, "approve, 1970-01-02 00:00:00 UTC"),
    ],
)
def test_an_answer_is_described_with_everything_that_it_decided(answer: dict[str, Any], said: str) -> None:
    assert describe_answer({"by": "ann", "decision": "approve", **answer}) == f"ann answered before ({said})"

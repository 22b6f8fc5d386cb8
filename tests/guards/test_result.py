from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator_guards import FAILURE_PHRASES, failed_result


@pytest.mark.parametrize(
    ("content", "failed"),
    [
        ('{"success": true, "error": null}', False),
        ('{"success": false}', True),
        ('{"ok": false, "data": 1}', True),
        ('{"ok": true, "error": "ignored"}', False),
        ('{"success": true, "error": "ignored"}', False),
        ('{"success": true, "ok": false}', False),
        ('{"success": false, "ok": true}', True),
        ('{"error": "boom"}', True),
        ('{"error": {"code": 1}}', True),
        ('{"error": null}', False),
        ('{"error": ""}', False),
        ('{"error": {}}', False),
        ('{"error": false}', False),
        ('{"success": "false"}', False),
        ('{"success": null, "error": "boom"}', True),
        ('{"data": {"success": false}}', False),
        ("{}", False),
        ('Result: {"success": false}', True),
        ('```json\n{"success": false}\n```', True),
        ('The reply was {"error": "x"}\n', True),
        ('{"success": false} was the old answer', False),
        ('see {"error": "x"} and {"ok": true}', False),
        ('[{"error": "x"}]', False),
        ('{"error": "x"', False),
        ("{error: x}", False),
        ("0 errors", False),
        ("build failed", False),
        ("", False),
        ("{" * 2000 + "}", False),
    ],
)
def test_d10_an_explicit_statement_decides_and_text_alone_does_not(content: str, *, failed: bool) -> None:
    assert failed_result(content) is failed


def test_the_phrases_of_a_failure_are_these() -> None:
    assert " | ".join(FAILURE_PHRASES) == (
        "error | failed | failure | missing required | invalid | not found | unauthorized | forbidden | bad request"
        " | exception | cannot | unable to"
    )


@pytest.mark.parametrize("phrase", FAILURE_PHRASES)
def test_a_tool_that_declares_plain_text_is_judged_by_phrases(phrase: str) -> None:
    text = f"Step 2: {phrase.upper()} here"

    assert failed_result(text, declared_plain_text=True)
    assert not failed_result(text)


@pytest.mark.parametrize(
    "text",
    [
        "0 errors",
        "no errors found",
        "12 passed, 0 failed",
        "without any errors",
        "Zero failures",
        "no exceptions",
        "ok",
        "",
        "terror",
    ],
)
def test_d10_plain_text_that_denies_errors_is_a_success(text: str) -> None:
    assert not failed_result(text, declared_plain_text=True)


@pytest.mark.parametrize("text", ["10 errors", "0 errors, 2 failed", "no errors in a; error in b"])
def test_denying_one_error_does_not_hide_another(text: str) -> None:
    assert failed_result(text, declared_plain_text=True)


def test_json_decides_for_a_plain_text_tool_too() -> None:
    assert not failed_result('{"success": true, "log": "1 error"}', declared_plain_text=True)
    assert failed_result("error in {braces}", declared_plain_text=True)


@given(text=st.text(), plain=st.booleans())
def test_any_text_gets_an_answer(text: str, *, plain: bool) -> None:
    assert failed_result(text, declared_plain_text=plain) in {True, False}


@given(
    rest=st.dictionaries(
        st.text(max_size=5).filter(lambda name: name != "success"), st.text(max_size=5), max_size=4
    )
)
def test_success_wins_over_every_other_member(rest: dict[str, str]) -> None:
    assert not failed_result(json.dumps({**rest, "success": True}))
    assert failed_result(json.dumps({**rest, "success": False}))

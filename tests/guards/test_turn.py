"""Fingerprints: what makes two turns equal, and that no process sees it otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestrator_guards
from orchestrator_guards import ObservedCall, TurnFingerprint, call_key, call_keys, fingerprint
from orchestrator_guards.progress import CANONICAL_ARGUMENTS, CANONICAL_RESULT, canonical, digest

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
seen_calls = st.builds(
    ObservedCall,
    st.sampled_from(["read", "write", "Search"]),
    json_values.map(json.dumps) | st.text(max_size=10),
    st.text(max_size=20),
    st.booleans(),
    st.sampled_from(["strict", "poll", "cumulative"]),
)


def single(arguments: str, result: str = "ok", tool: str = "f") -> TurnFingerprint:
    return fingerprint([ObservedCall(tool, arguments, result)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ('{"a": {"x": [1, {"p": 1, "q": 2}]}}', '{"a":{"x":[1,{"q":2,"p":1}]}}'),
        ("{}", ""),
        ("{}", "null"),
        ("{ }", " "),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ('{"a": 1, "a": "x"}', '{"a": "x"}'),
        ("grep   -n x", " grep -n\nx"),
        ('{"path": "a', '{"path":  "a'),
    ],
)
def test_arguments_that_mean_the_same_are_the_same(one: str, other: str) -> None:
    assert single(one) == single(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": 2}'),
        ("[1, 2]", "[2, 1]"),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": {}}', '{"a": []}'),
        ('{"a": 1}', '[["a", 1]]'),
        ('{"a": "x y"}', '{"a": "x  y"}'),
        ("'x'", '"x"'),
        ("{}", "[]"),
    ],
)
def test_arguments_that_mean_something_else_are_different(one: str, other: str) -> None:
    assert single(one).calls != single(other).calls


def test_the_lengths_up_to_which_texts_are_compared_as_json_are_part_of_the_record() -> None:
    """Digests of earlier turns are stored: with other lengths a resumed run would not recognise them."""
    assert (CANONICAL_ARGUMENTS, CANONICAL_RESULT) == (2048, 256)


@pytest.mark.parametrize("most", [CANONICAL_ARGUMENTS, CANONICAL_RESULT])
def test_a_text_of_exactly_the_longest_length_is_compared_as_json_and_one_longer_is_not(most: int) -> None:
    def texts(length: int) -> list[str]:
        filling = "x" * (length - len('{"a":"","b":1}'))
        return [f'{{"a":"{filling}","b":1}}', f'{{"b":1,"a":"{filling}"}}']

    exact, longer = texts(most), texts(most + 1)
    assert [len(text) for text in (*exact, *longer)] == [most, most, most + 1, most + 1]
    assert len({canonical(text, most) for text in exact}) == 1
    assert len({canonical(text, most) for text in longer}) == 2


def test_very_long_arguments_and_results_are_compared_as_they_stand() -> None:
    long = json.dumps({"a": "x" * CANONICAL_ARGUMENTS, "b": 1})
    reordered = json.dumps({"b": 1, "a": "x" * CANONICAL_ARGUMENTS})
    wide = json.dumps({"a": "x" * CANONICAL_RESULT, "b": 1})

    assert single(long) == single(f" {long}\n")
    assert single(long).calls != single(reordered).calls
    assert single("{}", wide) != single("{}", wide.replace(": ", ":"))


@pytest.mark.parametrize(
    "text", ["[" * 1500, '{"a": ' * 300, "1" * 5000, "\ud800", '{"a": "\\ud800"}', '{"a": 1} x']
)
def test_no_text_is_too_odd_for_a_fingerprint(text: str) -> None:
    assert single(text, text) == single(text, text)
    assert fingerprint([], text) == fingerprint([], text)


def test_a_result_is_part_of_the_turn_but_not_of_its_calls() -> None:
    one, other = single("{}", "12:01"), single("{}", "12:02")

    assert one.calls == other.calls
    assert one.results != other.results


def test_results_that_change_places_between_two_calls_are_different_results() -> None:
    pair = [ObservedCall("a", "{}", "1"), ObservedCall("b", "{}", "2")]
    swapped = [ObservedCall("a", "{}", "2"), ObservedCall("b", "{}", "1")]

    assert fingerprint(pair).results != fingerprint(swapped).results


@given(calls=st.lists(seen_calls, max_size=5), data=st.data())
def test_the_order_inside_a_batch_does_not_count(calls: list[ObservedCall], data: st.DataObject) -> None:
    assert fingerprint(data.draw(st.permutations(calls))) == fingerprint(calls)


@given(seen=seen_calls)
def test_a_batch_of_one_is_the_same_however_it_is_built(seen: ObservedCall) -> None:
    alone, twice = fingerprint([seen]), fingerprint([seen, seen])

    assert twice.calls == alone.calls * 2
    assert twice.results == alone.results * 2
    assert twice[2:] == alone[2:]
    assert alone.calls == call_keys([(seen.tool, seen.arguments)]) == (call_key(seen.tool, seen.arguments),)


@given(value=json_values)
def test_json_is_compared_as_json(value: object) -> None:
    dense = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    wide = json.dumps(value, indent=2)

    assert canonical(dense, 10**6) == canonical(wide, 10**6)


@given(calls=st.lists(seen_calls, max_size=3), text=st.text(max_size=20))
def test_a_fingerprint_is_pure(calls: list[ObservedCall], text: str) -> None:
    before = list(calls)

    assert fingerprint(calls, text) == fingerprint(calls, text)
    assert calls == before


def test_a_turn_fails_only_when_every_call_does() -> None:
    good, bad = ObservedCall("a", "{}", "ok"), ObservedCall("b", "{}", "no", failed=True)

    assert not fingerprint([good, bad]).failed
    assert fingerprint([bad, bad]).failed
    assert fingerprint([bad, bad]).errors == fingerprint([bad]).errors == (digest("no"),)
    assert not fingerprint([good]).errors


def test_the_text_counts_only_without_calls() -> None:
    seen = [ObservedCall("a", "{}", "ok")]

    assert fingerprint(seen, "one") == fingerprint(seen, "two")
    assert fingerprint([], "one two") == fingerprint([], " one\ntwo ")
    assert fingerprint([], "one") != fingerprint([], "two")


def test_no_argument_or_result_can_be_read_from_a_turn() -> None:
    turn = fingerprint([ObservedCall("login", '{"password": "hunter2"}', "token abc", failed=True)])

    assert "hunter2" not in repr(turn)
    assert "abc" not in repr(turn)


def test_fingerprints_are_the_same_in_every_process() -> None:
    program = """if True:
        from orchestrator_guards import ObservedCall, fingerprint
        calls = [ObservedCall(tool, '{"b": [1, "é"], "a": null}', "ok ü", tool == "Y") for tool in "XYZ"]
        turn = fingerprint(calls)
        print(turn.calls, turn.results, sorted(turn.tools))
        print(fingerprint([calls[1]]).errors, fingerprint([], "ß").text)
    """
    source_root = str(Path(orchestrator_guards.__file__).parents[1])

    def run(seed: str) -> str:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": source_root,
            "PYTHONIOENCODING": "utf-8",
        }
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert run("1") == run("2") == run("4242")


def test_digests_are_those_of_the_first_release() -> None:
    """A resumed run compares new turns with old ones: a change here is a change of the journal."""
    turn = fingerprint([ObservedCall("Read", '{"b": 2, "a": [true, null, "é"]}', '{"text": "x"}')])

    assert turn.calls == ("c666660057d265d8",)
    assert turn.results == ("35f38d8104e524d9",)
    assert fingerprint([], "hello").text == "a7b6eda801e5347d"

"""Every recorded conversation there is, through the command line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

CORPUS = Path(__file__).parents[3] / "shared/data/trajectories"
FILES = Path(__file__).parents[1] / "data/trajectories"


def essence(message: dict[str, Any]) -> tuple[object, ...]:
    """What has to be equal, read from plain data without any code of ours."""
    calls = [
        (call.get("id") or "", call["function"]["name"], call["function"].get("arguments") or "")
        for call in message.get("tool_calls") or ()
    ]
    return message["role"], message.get("content"), calls, message.get("tool_call_id") or ""


def recorded(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    return {
        record["id"]: [essence(message) for message in record["messages"]]
        for file in sorted(folder.glob("*.jsonl"))
        if file.name != "index.jsonl"
        for record in map(json.loads, file.read_text(encoding="utf-8").splitlines())
    }


def check(found: list[dict[str, Any]], expected: dict[str, list[tuple[object, ...]]]) -> None:
    assert [one["id"] for one in found] == list(expected)
    for one in found:
        ours, theirs = [essence(message) for message in one["messages"]], expected[one["id"]]
        if one["result"] == "irregular":
            assert one["irregular"], one["id"]
            assert ours == theirs[: len(ours)], one["id"]
        else:
            assert ours == theirs, one["id"]


@pytest.mark.campaign
def test_the_whole_corpus_is_reproduced_but_for_what_no_loop_produces(
    cli: Callable[..., Any], absent: Callable[[str], NoReturn]
) -> None:
    if not CORPUS.is_dir():
        absent("no corpus of conversations beside the repository (../shared/data/trajectories)")
    done = cli("replay", str(CORPUS), "--json")
    assert (done.code, done.err) == (0, "")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert len(found) == 338
    assert Counter(one["result"] for one in found) == {
        "reproduced": 204,
        "reproduced_to_open_end": 96,
        "irregular": 38,
    }
    check(found, recorded(CORPUS))


def test_the_selection_in_this_repository_is_too(cli: Callable[..., Any]) -> None:
    done = cli("replay", str(FILES), "--json")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert {one["result"] for one in found} <= {"reproduced", "reproduced_to_open_end", "irregular"}
    check(found, recorded(FILES))


@pytest.mark.parametrize("result", ["reproduced", "reproduced_to_open_end"])
def test_how_the_runs_ended_says_why(cli: Callable[..., Any], result: str) -> None:
    done = cli("replay", str(FILES), "--json")
    for one in map(json.loads, done.out.splitlines()):
        if one["result"] == result:
            *before, last = [(run["outcome"], run["reason"]) for run in one["runs"]]
            assert {outcome for outcome, _ in before} <= {"completed"}
            # The answers of two recordings end at the output limit.
            ends = {"completed", "partial"} if last[1] == "truncated" else {"completed"}
            assert last[0] in (ends if result == "reproduced" else {"failed"}), one["id"]

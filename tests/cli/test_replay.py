from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.examples import bundled

Cli = Callable[..., Any]
Lines = Callable[[str], list[dict[str, Any]]]


def write(file: Path, *records: object) -> None:
    file.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records))


@pytest.fixture
def moons(record: Any) -> dict[str, Any]:
    """Two turns of the user, a call in the first."""
    found: dict[str, Any] = record.conversation(
        {"role": "system", "content": "Be brief."},
        record.user("How many moons?"),
        record.says("Let me look.", ("c", "look", '{"of" : "it"}'), ("c", "look", "")),
        record.result("c", "one"),
        record.result("c", "two"),
        record.says("Three?"),
        record.user("Sure?"),
        record.says(""),
        model="recorded-1",
    )
    return found


def test_every_bundled_conversation_is_reproduced(cli: Cli, lines: Lines) -> None:
    done = cli("replay", "--bundled", "--json")
    found = lines(done.out)
    assert [one["file"] for one in found] == [path.name for path in bundled()]
    assert {one["result"] for one in found} == {"reproduced"}
    assert (done.code, done.err) == (0, "")


def test_one_run_for_each_turn_of_the_user_with_our_history_carried_on(
    cli: Cli, lines: Lines, folder: Path, moons: dict[str, Any]
) -> None:
    write(folder / "moons.jsonl", moons)
    (found,) = lines(cli("replay", "moons.jsonl", "--json").out)
    assert list(found) == ["id", "file", "result", "irregular", "runs", "messages"]
    assert (found["id"], found["file"], found["result"]) == ("one", "moons.jsonl", "reproduced")
    first, second = found["runs"]
    assert first == {
        "outcome": "completed",
        "reason": "none",
        "error": None,
        "transitions": 8,
        "states": {
            "init": 1,
            "await_llm": 2,
            "evaluate_response": 2,
            "process_tools": 1,
            "update_budgets": 1,
            "handle_completion": 1,
            "finalize": 1,
        },
    }
    assert second["transitions"] == 4
    names = [message.pop("name", None) for message in found["messages"]]
    assert names == [None, None, None, "look", "look", None, None, None]
    assert found["messages"] == moons["messages"]


OPEN_ENDS = [
    (6, []),
    (5, ["model's answer"]),
    (4, ["result of look"]),
    (3, ["result of look"]),
    (2, ["answer"]),
]


@pytest.mark.parametrize(("kept", "missing"), OPEN_ENDS)
def test_a_recording_that_stops_is_reproduced_up_to_there(
    cli: Cli, lines: Lines, folder: Path, moons: dict[str, Any], kept: int, missing: list[str]
) -> None:
    write(folder / "moons.jsonl", {**moons, "messages": moons["messages"][:kept]})
    done = cli("replay", "moons.jsonl", "--json")
    (found,) = lines(done.out)
    for message in found["messages"]:
        message.pop("name", None)
    assert found["messages"] == moons["messages"][:kept]
    assert found["result"] == ("reproduced_to_open_end" if missing else "reproduced")
    assert all(text in found["runs"][-1]["error"] for text in missing)
    assert done.code == 0


def test_an_irregular_conversation_is_named_and_followed_while_it_is_regular(
    cli: Cli, lines: Lines, folder: Path, record: Any
) -> None:
    user, says, result = record.user, record.says, record.result
    interrupted = [user("a"), says(None, ("c", "look", "{}")), result("c", "one"), user("b"), says("B")]
    twice = [user("a"), says("A"), says("again"), user("b"), says("B")]
    greeting = [says("Hello!"), user("a"), says("A")]
    unanswered = [user("a"), says(None, ("c", "look", "{}")), user("b"), says("B")]
    write(
        folder / "odd.jsonl",
        *(record.conversation(*messages) for messages in (interrupted, twice, greeting, unanswered)),
    )
    found = lines(cli("replay", "odd.jsonl", "--json").out)
    assert {one["result"] for one in found} == {"irregular"}
    assert [one["irregular"] for one in found] == [
        ["message_right_after_result"],
        ["answer_not_followed_by_user"],
        ["starts_with_assistant"],
        ["results_out_of_order"],
    ]
    assert [len(one["messages"]) for one in found] == [5, 2, 3, 2]
    assert [[run["outcome"] for run in one["runs"]] for one in found] == [
        ["failed", "completed"],
        ["completed"],
        ["completed"],
        ["failed"],
    ]


def test_a_line_that_is_no_conversation_is_unusable_and_the_rest_goes_on(
    cli: Cli, lines: Lines, folder: Path, moons: dict[str, Any]
) -> None:
    write(folder / "mixed.jsonl", '{"messages": [', moons, {"messages": []}, {"messages": [{"role": "moon"}]})
    done = cli("replay", "mixed.jsonl", "--json")
    found = lines(done.out)
    assert [one["result"] for one in found] == ["unusable", "reproduced", "unusable", "unusable"]
    assert [one["id"] for one in found] == ["mixed-1", "one", "mixed-3", "mixed-4"]
    assert found[0]["reason"].startswith("mixed.jsonl, line 1: malformed JSON")
    assert (found[0]["runs"], found[0]["messages"], found[0]["irregular"]) == ([], [], [])
    (sentence,) = done.err.splitlines()
    assert "3 of 4 conversations unusable; the first, mixed-1: mixed.jsonl, line 1: malformed" in sentence
    assert done.code == 2


def test_limits_are_off_unless_given_and_what_they_cut_is_a_divergence(
    cli: Cli, lines: Lines, folder: Path, record: Any
) -> None:
    turns = [
        message
        for number in range(150)
        for message in (record.says(None, (f"c{number}", "look", "{}")), record.result(f"c{number}", "same"))
    ]
    write(folder / "long.jsonl", record.conversation(record.user("a"), *turns, record.says("done")))
    (found,) = lines(cli("replay", "long.jsonl", "--json").out)
    assert (found["result"], len(found["messages"])) == ("reproduced", 302)
    done = cli("replay", "long.jsonl", "--json", "--limit", "max_iterations=20")
    (found,) = lines(done.out)
    assert (found["result"], found["runs"][0]["outcome"], done.code) == ("diverged", "budget_exceeded", 1)
    assert "message 41: message differs" in found["reason"]
    assert "the run ended as budget_exceeded (max_iterations)" in done.err


def test_a_folder_is_all_its_files_but_the_index(cli: Cli, lines: Lines, folder: Path, moons: Any) -> None:
    (folder / "talks").mkdir()
    for name in ("b.jsonl", "a.jsonl", "index.jsonl"):
        write(folder / "talks" / name, {**moons, "id": name})
    assert [one["id"] for one in lines(cli("replay", "talks", "--json").out)] == ["a.jsonl", "b.jsonl"]


def test_for_people_there_is_a_line_for_each_and_a_summary(cli: Cli, folder: Path, moons: Any) -> None:
    write(folder / "moons.jsonl", moons, {**moons, "id": "open", "messages": moons["messages"][:2]})
    done = cli("replay", "moons.jsonl")
    first, second, summary = done.out.splitlines()
    assert first.split() == ["reproduced", "2", "runs", "one"]
    assert second.split() == ["reproduced_to_open_end", "1", "run", "open"]
    assert summary == "2 conversations: 1 reproduced, 1 reproduced_to_open_end, 0 irregular, 0 unusable"


def test_watching_shows_everything_that_happens(cli: Cli, folder: Path, moons: Any) -> None:
    moons["turns"] = [{"message": 2, "usage": {"prompt_tokens": 1200, "completion_tokens": 7}}]
    write(folder / "moons.jsonl", "{", moons)
    done = cli("replay", "moons.jsonl", "--live", "--speed", "0")
    shown = done.out
    positions = [
        shown.index(text)
        for text in (
            "=== 2 of 2: one, recorded-1",
            "user: How many moons?",
            "init -> await_llm",
            "model recorded-1: ok, 1,200 tokens in, 7 out",
            "tool look: ok, 3 characters",
            "assistant: Three?",
            "user: Sure?",
            "reproduced: 8 messages; 3 requests, 2 tool calls, 1,200 tokens in, 7 out",
            "=== report: 3 requests",
            "bottleneck: ",
            "commonest edge: ",
            "1 run completed\n",
            "1 run completed (empty_answer)",
            "2 conversations: 1 reproduced, 0 reproduced_to_open_end, 0 irregular, 1 unusable",
            "--model python:my_agent:model",
        )
    ]
    assert positions == sorted(positions)
    assert done.code == 2


def test_the_hint_works(cli: Cli, folder: Path) -> None:
    shown = cli("replay", "--bundled", "--live", "--speed", "0").out.splitlines()
    start = shown.index("    async def model(request):            # has request.messages and request.tools")
    (folder / "my_agent.py").write_text("\n".join(line[4:] for line in shown[start : start + 2]))
    command = shown[start + 3].partition("run ")[2]
    assert command == '"Hello" --model python:my_agent:model'
    assert "Hello from my model." in cli("run", "Hello", "--model", "python:my_agent:model").out


def test_recorded_times_can_be_waited_for(
    cli: Cli, folder: Path, moons: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def sleep(_: object, seconds: float) -> None:
        waited.append(round(seconds, 3))

    monkeypatch.setattr("orchestrator.kernel.clock.SystemClock.sleep", sleep)
    moons["turns"] = [{"message": 2, "latency_s": 60}, {"message": 5, "latency_s": 39.8}]
    write(folder / "moons.jsonl", moons)
    cli("replay", "moons.jsonl")
    assert waited == []
    cli("replay", "moons.jsonl", "--speed", "0.5")
    assert waited == [30, 19.9]
    waited.clear()
    cli("replay", "moons.jsonl", "--live")  # ten seconds at most, 0.2 for the one that was not recorded
    assert waited == [6, 3.98, 0.02]


def test_a_replay_can_be_logged_and_reported(cli: Cli) -> None:
    cli("replay", "--bundled", "--log", "runs.log")
    assert "6 runs completed" in cli("report", "runs.log").out

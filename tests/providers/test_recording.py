from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import OrchestratorError
from orchestrator.examples import bundled
from orchestrator.llm.message import Message, ToolCall, Usage
from orchestrator.providers.reading import MalformedConversation, usage_from
from orchestrator.providers.replay import (
    REPRODUCED,
    ProviderRecord,
    ReplayError,
    compare,
    expectation,
    irregularities,
    load,
    record_from,
    scan,
    split_runs,
    tool_name,
)

SELECTION = Path(__file__).parent.parent / "data/trajectories/selection.jsonl"
USER, ANSWER = Message("user", "do"), Message("assistant", "done")
SYSTEM = Message("system", "be brief")


def calls(*ids: str) -> Message:
    return Message("assistant", None, tuple(ToolCall(id_, "look") for id_ in ids))


def result(id_: str) -> Message:
    return Message("tool", "seen", tool_call_id=id_)


def record(*messages: Message) -> ProviderRecord:
    return ProviderRecord("made", messages)


# ---- files ----

CALL = '{"messages": [{"role": "assistant", "tool_calls": [{"function": %s}]}]}'


def test_a_folder_gives_the_conversations_of_all_its_files_but_the_index(tmp_path: Path) -> None:
    line = '{"messages": [{"role": "user", "content": "x"}]}\n'
    (tmp_path / "b.jsonl").write_text(line + "\n" + line)
    (tmp_path / "a.jsonl").write_text(line)
    (tmp_path / "index.jsonl").write_text('{"id": "a-1", "file": "a.jsonl"}\n')
    (tmp_path / "notes.md").write_text("no conversation")
    assert [(one.file, one.id) for one in load(tmp_path)] == [
        ("a.jsonl", "a-1"),
        ("b.jsonl", "b-1"),
        ("b.jsonl", "b-3"),
    ]


@pytest.mark.parametrize("wrap", [lambda messages: messages, lambda messages: {"messages": messages}])
def test_a_plain_file_is_a_list_of_messages_or_an_object_with_them(
    tmp_path: Path, wrap: Callable[[Any], Any]
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(wrap([USER.to_openai(), calls("1").to_openai()]), indent=2))
    (found,) = load(file)
    assert (found.id, found.messages) == ("talk", (USER, calls("1")))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"messages": [', r"t\.jsonl, line 2: malformed JSON \(Expecting value at column 1\)$"),
        ("7", "line 2: a conversation is an object or a list of messages, not a number"),
        ('"x"', "not text"),
        ("{}", "line 2: member 'messages' is missing or empty"),
        ('{"messages": []}', "member 'messages' is missing or empty"),
        ('{"messages": {"role": "user"}}', "member 'messages' is missing or empty"),
        ('{"messages": ["hi"]}', "message 0: it is text, not an object"),
        ('{"messages": [{"role": "robot"}]}', "message 0: unknown role 'robot'"),
        ('{"messages": [{"content": "x"}]}', "message 0: unknown role None"),
        ('{"messages": [{"role": "user", "content": 3}]}', "message 0: member 'content' is a number"),
        (
            '{"messages": [{"role": "assistant", "tool_calls": [3]}]}',
            "message 0: member 'tool_calls' is not a list of objects",
        ),
        ('{"messages": [{"role": "assistant", "tool_calls": 3}]}', "member 'tool_calls' is not a list"),
        (CALL % '{"name": "f", "arguments": {}}', "message 0: member 'arguments' is an object, not text"),
        (CALL % "{}", "message 0: member 'name' is null, not text"),
        ('{"messages": [{"role": "user"}], "tools": [{"function": 3}]}', "member 'function' is a number"),
        ('{"messages": [{"role": "user"}], "tools": [1]}', "member 'tools' is not a list of objects"),
        ('{"messages": [{"role": "user"}], "turns": [{}]}', "member 'turns' has an entry without"),
        ('{"messages": [{"role": "user"}], "turns": [{"message": 0, "usage": 3}]}', "'usage' is a number"),
        ('{"messages": [{"role": "user"}], "tool_seconds": [1]}', "'tool_seconds' is a list, not an object"),
        ('{"messages": [{"role": "user"}], "tool_seconds": {"a": "b"}}', "member 'a' is text, not a number"),
        ('{"messages": [{"role": "user"}], "tools_offered_by_turn": {"x": []}}', "does not map message"),
    ],
)
def test_a_bad_line_is_one_sentence_with_file_and_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"messages": [{"role": "user"}]}\n' + text + "\n")
    with pytest.raises(ReplayError, match=why) as caught:
        list(load(file))
    assert isinstance(caught.value, OrchestratorError)
    assert (caught.value.line, caught.value.file) == (2, str(file))
    assert "\n" not in str(caught.value)


MEMBERS = (
    *("id", "model", "tools", "turns", "tool_seconds", "tools_offered_by_turn", "tools_added_at_message"),
    *("messages", "message", "usage", "prompt_tokens_details", "cost", "latency_s", "0", "1", "x"),
    *("role", "content", "tool_calls", "function", "name", "arguments"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "user", "assistant", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"])},
    optional=dict.fromkeys(("content", "tool_calls", "tool_call_id"), VALUES),
)


@given(MESSAGES, st.fixed_dictionaries({}, optional=dict.fromkeys(MEMBERS, VALUES)))
def test_any_json_is_a_conversation_or_malformed(message: Any, members: Any) -> None:
    with contextlib.suppress(MalformedConversation):
        found = record_from({**members, "messages": [message]})
        assert len(found.tools_at(0)) <= len(found.tools)
        assert isinstance(found.messages[0].text, str)
        assert len(split_runs(found)) <= 1


def test_scanning_goes_on_after_a_bad_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    good = b'{"messages": [{"role": "user"}]}\n'
    file.write_bytes(good + b"{]\n" + b'"\xff"\n' + good)
    kinds = [type(found).__name__ for found in scan(file)]
    assert kinds == ["ProviderRecord", "ReplayError", "ReplayError", "ProviderRecord"]


@pytest.mark.parametrize("name", ["none.jsonl", "none.json", "empty"])
def test_what_is_not_there_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReplayError, match=rf"{name}: (cannot be read \(No such file|no conversations found)"):
        list(load(tmp_path / name))


def test_the_bundled_conversations_can_be_replayed_to_their_end() -> None:
    records = [one for file in bundled() for one in load(file)]
    assert [file.name for file in bundled()] == [
        "chain.jsonl",
        "parallel.jsonl",
        "research.jsonl",
        "several_turns.jsonl",
        "tool_error.jsonl",
    ]
    assert {expectation(one) for one in records} == {REPRODUCED}
    assert [len(split_runs(one)) for one in records] == [1, 1, 1, 2, 1]
    assert all(file.stat().st_size < 40_000 for file in bundled())


# ---- usage and offers ----


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        ({}, Usage()),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(10, 4, 3, 2),
        ),
        (
            {"input_tokens": 10, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 3}},
            Usage(10, 4, 3),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 4,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 7,
            },
            Usage(117, 4, 100, cache_write_tokens=7),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 4, "prompt_cache_hit_tokens": 3}, Usage(10, 4, 3)),
        (
            {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": None, "cost": 0.5},
            Usage(10, 4, cost=0.5),
        ),
    ],
)
def test_usage_is_read_from_every_provider_s_form(raw: dict[str, Any], usage: Usage) -> None:
    assert usage_from(raw) == usage


def test_a_reply_without_usage_has_none() -> None:
    found = record_from(
        {"messages": [USER.to_openai(), ANSWER.to_openai()], "turns": [{"message": 1, "usage": None}]}
    )
    assert (found.turn(1).usage, found.turn(0).usage) == (Usage(), Usage())


def offers(**members: Any) -> list[list[str]]:
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    found = record_from({"messages": [USER.to_openai()], "tools": tools, **members})
    return [[tool_name(tool) for tool in found.tools_at(index)] for index in (1, 3, 5)]


def test_all_tools_are_offered_unless_the_recording_says_otherwise() -> None:
    assert offers() == [["a", "b", "c"]] * 3


def test_an_offer_holds_until_the_next_change() -> None:
    assert offers(tools_offered_by_turn={"1": ["a"], "5": []}) == [["a"], ["a"], []]


def test_tools_added_at_a_message_are_offered_from_there_on() -> None:
    assert offers(tools_added_at_message={"3": ["b"], "5": ["c"]}) == [["a"], ["a", "b"], ["a", "b", "c"]]


# ---- what is irregular ----


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([USER, calls("1", "2"), result("1"), result("2"), ANSWER], ()),
        ([SYSTEM, ANSWER, USER, ANSWER], ()),
        ([USER, USER, ANSWER, SYSTEM], ("answer_not_followed_by_user",)),
        ([USER, calls("", ""), result(""), result(""), ANSWER], ()),
        ([USER, calls("1", "2"), result("1")], ()),
        ([USER, calls("1", "2")], ()),
        ([USER], ()),
        ([], ()),
        ([USER, calls("1", "2"), result("2"), result("1"), ANSWER], ("results_out_of_order",)),
        ([USER, calls("1", "2"), result("1"), ANSWER], ("results_out_of_order",)),
        ([USER, calls("1"), result("1"), result("1"), ANSWER], ("results_out_of_order",)),
        ([USER, calls("1"), USER], ("results_out_of_order",)),
        ([USER, calls("1", "2"), result("2")], ("results_out_of_order",)),
        ([USER, result("1"), ANSWER], ("results_out_of_order",)),
        ([result("1"), ANSWER], ("results_out_of_order",)),
        ([USER, ANSWER, ANSWER], ("answer_not_followed_by_user",)),
        ([USER, calls("1"), result("1"), SYSTEM, ANSWER], ("message_right_after_result",)),
        ([USER, calls("1"), result("1"), USER], ("message_right_after_result",)),
        ([ANSWER, USER, ANSWER], ("starts_with_assistant",)),
        (
            [ANSWER, ANSWER, USER, calls("1"), result("1"), USER, calls("1"), ANSWER],
            (
                "results_out_of_order",
                "answer_not_followed_by_user",
                "message_right_after_result",
                "starts_with_assistant",
            ),
        ),
    ],
)
def test_irregularities_are_named_once_each(messages: list[Message], found: tuple[str, ...]) -> None:
    assert irregularities(messages) == found


# ---- runs ----


def cut(*messages: Message) -> list[tuple[int, int, int, bool]]:
    return [
        (len(run.history), len(run.prompt), len(run.expected), run.complete)
        for run in split_runs(record(*messages))
    ]


@pytest.mark.parametrize(
    ("messages", "runs"),
    [
        ([SYSTEM, USER, ANSWER, USER, calls("1"), result("1"), ANSWER], [(0, 2, 1, True), (3, 1, 3, True)]),
        ([SYSTEM, ANSWER, USER, ANSWER], [(2, 1, 1, True)]),
        ([ANSWER, SYSTEM, USER, ANSWER], [(1, 2, 1, True)]),
        ([USER, USER, ANSWER], [(0, 2, 1, True)]),
        ([USER, ANSWER, USER], [(0, 1, 1, True), (2, 1, 0, False)]),
        ([USER, calls("1", "2"), result("1")], [(0, 1, 2, False)]),
        ([USER, calls("1"), result("1"), SYSTEM, ANSWER], [(0, 1, 2, False), (3, 1, 1, True)]),
        ([SYSTEM, calls("1"), result("1"), ANSWER], [(0, 1, 3, True)]),
        ([SYSTEM, ANSWER], [(0, 1, 1, True)]),
        ([calls("1"), result("1"), ANSWER], []),
        ([calls("1"), result("1"), USER, ANSWER], [(2, 1, 1, True)]),
        ([result("1"), USER, ANSWER], [(1, 1, 1, True)]),
        ([USER, Message("assistant", "")], [(0, 1, 1, True)]),
    ],
)
def test_a_conversation_is_cut_into_one_run_for_each_turn_of_the_user(
    messages: list[Message], runs: list[tuple[int, int, int, bool]]
) -> None:
    assert cut(*messages) == runs


def test_the_runs_of_a_conversation_add_up_to_it() -> None:
    for found in load(SELECTION):
        for run in split_runs(found):
            assert (*run.history, *run.prompt, *run.expected) == found.messages[: run.stop]


# ---- comparing ----


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (
            Message("user", "look", (ToolCall("1", "f", "{}"),)),
            "message 0: role differs, recorded 'assistant', ours 'user'",
        ),
        (
            Message("assistant", "hook", (ToolCall("1", "f", "{}"),)),
            "message 0: content differs, recorded 'look', ours 'hook'",
        ),
        (
            Message("assistant", None, (ToolCall("1", "f", "{}"),)),
            "message 0: content differs, recorded 'look', ours None",
        ),
        (Message("assistant", "look"), "message 0: number of calls differs, recorded 1, ours 0"),
        (
            Message("assistant", "look", (ToolCall("2", "f", "{}"),)),
            "message 0: tool_calls[0].id differs, recorded '1', ours '2'",
        ),
        (
            Message("assistant", "look", (ToolCall("1", "g", "{}"),)),
            "message 0: tool_calls[0].name differs, recorded 'f', ours 'g'",
        ),
        (
            Message("assistant", "look", (ToolCall("1", "f", "{ }"),)),
            "message 0: tool_calls[0].arguments differs, recorded '{}', ours '{ }'",
        ),
    ],
)
def test_a_difference_names_message_member_and_both_values(ours: Message, said: str) -> None:
    assert compare([Message("assistant", "look", (ToolCall("1", "f", "{}"),))], [ours]) == [said]


def test_missing_and_extra_messages_are_differences() -> None:
    assert compare([USER, ANSWER], [USER]) == [
        "message 1: message differs, recorded a message of assistant, ours nothing"
    ]
    assert compare([USER], [USER, ANSWER]) == [
        "message 1: message differs, recorded nothing, ours a message of assistant"
    ]


def test_long_texts_are_shown_where_they_part() -> None:
    (said,) = compare(
        [Message("user", "a" * 5_000 + "X" + "b" * 5_000)], [Message("user", "a" * 5_000 + "Y" + "b" * 5_000)]
    )
    assert "…'aaaaaaaaaaaaaaaaaaaaXbbb" in said
    assert "…'aaaaaaaaaaaaaaaaaaaaYbbb" in said
    assert len(said) < 200


def test_a_result_without_id_equals_one_with_an_empty_id() -> None:
    assert compare([Message("tool", "x")], [Message("tool", "x", tool_call_id="")]) == []
    assert compare([result("1")], [result("2")]) == [
        "message 0: tool_call_id differs, recorded '1', ours '2'"
    ]

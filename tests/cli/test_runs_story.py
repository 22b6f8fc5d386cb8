"""What is folded out of records: path, times, calls, questions, messages. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from orchestrator.cli.runs.phrase import roughly, seconds_in, size, span
from orchestrator.cli.runs.question import expired
from orchestrator.cli.runs.show import MOST_LINES, drawn
from orchestrator.cli.shipped import SHIPPED
from orchestrator.errors import ConfigError
from orchestrator.journal.redacted import SHOWN, parted
from orchestrator.kernel.journal import Draft, Record
from orchestrator.runtime.runs.story import StateVisit, Story, folded
from tests.cli.recorded import SECRET, Call, Tape


def story(tape: Tape) -> Story:
    drafts = [Draft("created", tape.created), *itertools.chain(*tape.appends)]
    return Story.of("run", (Record(seq, 1, kind, body, "") for seq, (kind, body) in enumerate(drafts)))


def unfolded(stays: Sequence[StateVisit]) -> list[str]:
    return [state for step in folded(stays) for _ in range(step.times) for state in step.states]


# ---- the path ----


def test_five_hundred_turns_are_three_lines() -> None:
    tape = Tape("run").begin()
    for _ in range(500):
        tape.calls(Call("look"))
    lines = drawn(story(tape.completes()).visits)
    assert len(lines) == 3
    assert "500 × await_llm 8m 20s → evaluate_response → process_tools 4m 10s → update_budgets" in lines[1]
    assert lines[2].endswith("handle_completion → finalize")


def test_a_folded_path_is_the_path(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        names = [dice.choice("ab") if dice.random() < 0.8 else "c" for _ in range(dice.randrange(40))]
        stays = [StateVisit(name, 1.0) for name in names]
        assert unfolded(stays) == names
        assert sum(sum(second or 0 for second in step.seconds) for step in folded(stays)) == len(names)


def test_a_path_without_repetition_is_cut_in_the_middle_and_says_so() -> None:
    stays = [StateVisit(f"a_long_name_of_a_state_{number}", 1.0) for number in range(1_000)]
    lines = drawn(stays)
    assert len(lines) == MOST_LINES + 1
    assert "lines more" in lines[MOST_LINES // 2]


def test_a_state_that_is_not_over_has_no_time_yet() -> None:
    assert drawn(story(Tape("run").begin().asked_for(Call("pay"))).visits)[-1].endswith("process_tools …")


# ---- times ----


def test_times_are_the_runs_own_and_a_last_stay_counts_when_it_is_known() -> None:
    tape = Tape("run").begin().calls(Call("look"), seconds=2.0)
    tape.t += 0.25
    stats = story(tape.parks("paused")).states()
    assert stats["await_llm"].visits == 2
    assert stats["await_llm"].total == pytest.approx(2.25)
    assert stats["process_tools"].longest == pytest.approx(0.5)


def test_an_edge_that_stays_is_no_visit() -> None:
    tape = Tape("run").begin()
    tape.add(tape.to("await_llm", "again", 1.0), tape.to("evaluate_response", "llm_response", 1.0))
    found = story(tape)
    assert found.states()["await_llm"].visits == 1
    assert found.states()["await_llm"].total == pytest.approx(2.0)
    assert [stay.state for stay in found.visits] == ["init", "await_llm", "evaluate_response"]


# ---- calls and questions ----


def test_a_call_without_a_result_is_running_and_one_taken_back_is_not() -> None:
    tape = Tape("run").begin().asked_for(Call("pay"), Call("mail"))
    tape.add(Draft("rolled_back", {"effect": "tool", "key": "1:1"}))
    found = story(tape)
    assert [(call.key, call.tool, call.effect) for call in found.running] == [("1:0", "pay", "irreversible")]
    assert found.calls["1:1"].outcome == "rolled_back"


def test_effects_on_files_are_no_tool_calls() -> None:
    tape = Tape("run").begin().add(Draft("intent", {"effect": "file", "key": "file-0", "change": "edit"}))
    assert story(tape).calls == {}


def test_a_question_is_pending_until_it_is_answered_or_the_run_is_over() -> None:
    tape = Tape("run").begin().asks(Call("pay", '{"sum": 1}'), Call("mail"))
    assert list(story(tape).questions) == ["1:0", "1:1"]
    assert story(tape).questions["1:0"].arguments == '{"sum": 1}'
    tape.decided("1:0", "approve")
    assert list(story(tape).questions) == ["1:1"]
    tape.ends("cancelled", "caller")
    assert story(tape).questions == {}


def test_what_is_asked_again_with_other_arguments_shows_these() -> None:
    tape = Tape("run").begin().asks(Call("pay", '{"sum": 1}'))
    body = {"key": "1:0", "tool": "pay", "digest": "d", "why": "unknown_effect", "arguments": '{"sum": 2}'}
    (question,) = story(tape.add(Draft("asked", body))).questions.values()
    assert (question.arguments, question.digest, question.why) == ('{"sum": 2}', "d", "unknown_effect")


def test_an_expiry_of_zero_is_never() -> None:
    tape = Tape("run").begin().asks(Call("pay"))
    tape.add(
        Draft("asked", {"key": "1:0", "tool": "pay", "digest": "d", "why": "approval", "expires_at": 0.0})
    )
    assert not expired(story(tape).questions["1:0"], 1e12)


def test_the_number_of_the_last_request_taken_is_known() -> None:
    tape = Tape("run").begin().add(Draft("control", {"kind": "pause", "by": "ann", "number": 3}))
    assert story(tape).inbox == 3


def test_after_every_append_each_message_has_what_it_came_from() -> None:
    tape = Tape("run").begin().calls(Call("look"), Call("mail")).asks(Call("pay"), Call("mail"))
    tape.decided("2:0", "approve").decided("2:1", "respond", content="sent")
    tape.add(tape.done(Call("mail"), 1)).answered("2:0", Call("pay")).parks("paused").completes()
    drafts = [Draft("created", tape.created), *itertools.chain(*tape.appends)]
    records = [Record(seq, 1, kind, body, "") for seq, (kind, body) in enumerate(drafts)]
    for count in range(1, len(records) + 1):
        found = Story.of("run", records[:count])
        assert found.last == count - 1
        assert len(found.answers) == len(found.messages) == len(found.spoken)
        for one in found.spoken:
            assert (one.answer is not None) == (one.message["role"] == "assistant")
            assert (one.done is not None) == (one.message["role"] == "tool")
        assert found.running == [call for call in found.calls.values() if found.ledger.entries[call.key].open]
    assert [one.answer["iteration"] for one in found.spoken if one.answer] == [1, 2, 3]


# ---- messages ----


def test_messages_are_put_together_from_what_was_added() -> None:
    found = story(
        Tape("run").begin().calls(Call("look", id="a"), Call("mail", id="b", outcome="error")).completes()
    )
    spoken = found.conversation
    assert [one.message["role"] for one in spoken] == ["user", "assistant", "tool", "tool", "assistant"]
    assert spoken[3].message == {
        "role": "tool",
        "content": f"result: {SECRET}",
        "tool_call_id": "b",
        "name": "mail",
        "is_error": True,
    }
    assert [one.answer is not None for one in spoken] == [False, True, False, False, True]


def test_a_restart_takes_messages_back_and_memory_is_no_conversation() -> None:
    tape = Tape("run").begin().calls(Call("look"))
    hint = {"role": "user", "content": "another way"}
    tape.add(Draft("context", {"messages": {"keep": 1, "add": [hint]}, "recalled": [0, 1]}))
    found = story(tape)
    assert [one.message["role"] for one in found.spoken] == ["user", "user"]
    assert [one.message for one in found.conversation] == [hint]


def test_a_migrated_context_replaces_all_messages() -> None:
    tape = Tape("run").begin().calls(Call("look"))
    tape.add(Draft("context", {"messages": [{"role": "user", "content": "new"}], "iteration": 7}))
    found = story(tape)
    assert [one.message["content"] for one in found.spoken] == ["new"]
    assert found.turn == 7


# ---- content ----


def test_each_member_of_a_context_that_is_shown_is_one_of_a_machine() -> None:
    contexts: list[Any] = [graph.context for graph in SHIPPED.values()]
    members = {field.name for context in contexts for field in fields(context)}
    shown = SHOWN["created"]["context"]
    assert shown is not None
    assert shown.keys() - members == {"next"}  # of a pending event, which is no member


def test_nothing_that_anybody_said_is_shown() -> None:
    tape = Tape("run").begin().calls(Call("look")).asks(Call("pay"))
    tape.decided("2:0", "respond", content=SECRET, arguments=SECRET).answered("2:0", Call("pay")).completes(
        SECRET
    )
    error = {"type": "ValueError", "message": SECRET, "reason": "callback_error"}
    tape.add(Draft("transition", {"seq": 9, "event": "failure", "source": "a", "dest": "b", "error": error}))
    drafts = [
        Draft("created", {**tape.created, "launch": {"prompt": SECRET}}),
        *itertools.chain(*tape.appends),
    ]
    for kind, body in drafts:
        assert SECRET not in str(parted(kind, body).shown), kind
    assert {kind for kind, body in drafts if SECRET in str(parted(kind, body).content)} == {
        "created",
        "context",
        "done",
        "approval",
        "transition",
        "ended",
    }


def test_a_member_or_kind_that_nobody_listed_is_content() -> None:
    assert parted("ended", {"outcome": "completed", "novel": SECRET}).left_out == ["novel"]
    assert parted("novel", {"text": SECRET}) == ({}, {"text": SECRET})
    assert parted("intent", {"calls": [{"key": "1:0", "arguments": SECRET}]}).shown == {
        "calls": [{"key": "1:0"}]
    }
    assert parted("context", {"messages": [{"role": "user"}]}).left_out == ["messages"]
    assert parted("context", {"messages": {"keep": 3, "add": []}}).left_out == ["messages.add"]
    assert parted("created", {"context": None}).shown == {"context": None}


def test_the_parts_of_a_body_are_the_body() -> None:
    tape = Tape("run").begin().calls(Call("look"))
    for kind, body in itertools.chain(*tape.appends):
        shown, content = parted(kind, body)
        assert {*shown, *content} == {*body}
        assert kind in SHOWN


# ---- words ----


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("1.5d", 129_600)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "1 d", "inf", "nan"])
def test_what_is_no_duration_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration; one is a number and s, m, h or d"):
        seconds_in(text)


def test_times_and_sizes_read_well() -> None:
    assert [span(one) for one in (0.0004, 9.5, 59.94, 60, 3_600, 200_000)] == [
        "0.000 s",
        "9.500 s",
        "59.9 s",
        "1m 00s",
        "1h 00m",
        "2d 07h",
    ]
    assert [roughly(one) for one in (-5, 61, 7_300, 864_000)] == ["0s", "61s", "2h", "10d"]
    assert [size(one) for one in (0, 1_023, 1_536, 5e9)] == ["0 B", "1023 B", "1.5 KiB", "4.7 GiB"]

"""The final answer: taken, or asked for once more with one message of feedback."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import CompletionError, LimitReached
from orchestrator.kernel.fact import OperationAttempt
from orchestrator.llm.message import Message, Response
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator_callbacks.llm_loop import answer
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import fingerprint
from tests.callbacks.stand import answered, facts, loop_run

NUMBERS = OutputSpec.of(list[int])
TWICE = replace(OFF, completion_retries=2)


def said(text: str, run: LoopRun) -> LoopRun:
    return answered(run, text=text)


def test_free_text_is_taken_as_it_is() -> None:
    run = said(" hello ", loop_run())
    assert answer.read(run) is None
    assert run.ctx.output == " hello "


def test_an_error_object_is_an_issue_while_retries_are_on_and_the_run_is_not_wrapping_up() -> None:
    run = said('{"error": "x"}', loop_run(limits=TWICE))
    assert answer.read(run) == "the answer is an error object: x"
    run.ctx.wrapping_up = True
    assert answer.read(run) is None


def test_a_typed_answer_is_read_or_its_fault_named() -> None:
    run = said("[1, 2]", loop_run(output=NUMBERS))
    assert (answer.read(run), run.ctx.output) == (None, [1, 2])
    assert "valid integer" in str(answer.read(said('["x"]', run)))
    for response, fault in {
        Response(refusal="no"): "the model refused: no",
        Response("[1", finish_reason="length"): answer.CUT,
        Response("[1", finish_reason="content_filter"): answer.FILTERED,
    }.items():
        run.ctx.response = response
        assert answer.read(run) == fault


def test_while_wrapping_up_nothing_is_asked_again_and_free_text_is_no_value() -> None:
    run = said("about two", loop_run(output=NUMBERS))
    run.ctx.wrapping_up = True
    assert (answer.read(run), run.ctx.output) == (None, None)


def test_no_answer_at_all_is_an_empty_one() -> None:
    run = loop_run()
    assert (answer.read(run), run.ctx.output) == (None, "")


def test_feedback_stands_after_the_answer_and_replaces_the_last_pair() -> None:
    run = loop_run(limits=TWICE, output=NUMBERS)
    for number in (1, 2):
        answer.request_another(said(f"bad {number}", run), f"issue {number}")
    assert [m.text.split(":")[0] for m in run.ctx.messages] == [
        "go",
        "bad 2",
        "Your answer could not be used (attempt 2 of 2)",
    ]
    assert "issue 2. Answer again as JSON that fits the schema" in run.ctx.messages[-1].text
    assert [fact.outcome for fact in facts(run, OperationAttempt)] == ["retry", "retry"]


def test_the_pair_is_replaced_wherever_it_stands() -> None:
    run = loop_run(limits=TWICE)
    answer.request_another(said("bad 1", run), "issue 1")
    run.ctx.messages += [Message("assistant", "between"), Message("user", "yes")]
    answer.request_another(said("bad 2", run), "issue 2")
    assert [m.text for m in run.ctx.messages[:-1]] == ["go", "between", "yes", "bad 2"]


@pytest.mark.parametrize(
    ("limit", "made", "asks"), [(2, 1, True), (2, 2, False), (2, 3, False), (0, 0, False)]
)
def test_two_retries_are_two(limit: int, made: int, asks: bool) -> None:
    run = said("bad", loop_run(limits=replace(OFF, completion_retries=limit)))
    run.ctx.completion.retries = made
    if asks:
        answer.request_another(run, "issue")
        assert run.ctx.completion.retries == made + 1
    else:
        with pytest.raises(CompletionError, match=f"no usable final answer after {made} retries: issue"):
            answer.request_another(run, "issue")
        assert run.ctx.fault == "completion_invalid"
        assert [fact.outcome for fact in facts(run, OperationAttempt)] == ["exhausted"]


def test_another_limit_ends_the_asking_and_leaves_the_history_as_it_was() -> None:
    run = said("bad", loop_run(limits=replace(TWICE, max_iterations=1)))
    with pytest.raises(LimitReached) as caught:
        answer.request_another(run, "issue")
    assert run.ctx.verdict is caught.value.verdict
    assert [m.text for m in run.ctx.messages] == ["go", "bad"]
    assert run.ctx.completion.retries == 0


def test_the_turn_kept_back_is_used_for_a_last_try() -> None:
    run = said("bad", loop_run(limits=replace(TWICE, max_iterations=2, wrap_up_turns=1)))
    answer.request_another(run, "issue")
    assert run.ctx.wrapping_up
    assert run.ctx.verdict is not None
    assert run.ctx.messages[-1].role == "user"


def test_the_same_unusable_answer_over_and_over_is_no_progress() -> None:
    run = said("bad", loop_run(limits=replace(TWICE, max_no_progress=2)))
    run.ctx.turns = (fingerprint([], "bad"),) * 2
    with pytest.raises(LimitReached, match="no_progress"):
        answer.request_another(run, "issue")

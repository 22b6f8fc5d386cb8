"""A context that fills up: noted, then summed up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.kernel.fact import OperationAttempt
from orchestrator.llm.message import Message, ToolCall
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.telemetry.scope import scope
from orchestrator_callbacks.llm_loop import compaction
from tests.callbacks.stand import USER, facts, loop_run
from tests.runtime.stage import Notebook

LIMITS = replace(OFF, compaction_threshold=0.8, compaction_cooldown=3)


class Lines:
    """A logger that keeps its warnings."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, object, object]] = []

    def warning(self, event: str, /, *args: object, **fields: object) -> None:
        self.lines.append((event, fields["observed"], fields["limit"]))

    debug = info = error = warning


@pytest.mark.parametrize(
    ("tokens", "limit", "since", "said", "due"),
    [
        (79, 100, 9, 1, False),
        (80, 100, 9, 1, True),
        (81, 100, 9, 1, True),
        (81, 0, 9, 1, False),
        (81, 100, 2, 1, False),
        (81, 100, 3, 1, True),
        (81, 100, 9, 0, False),
    ],
)
def test_it_is_due_at_the_threshold_after_the_cooldown_where_there_is_something_to_replace(
    tokens: int, limit: int, since: int, said: int, due: bool
) -> None:
    run = loop_run(*[Message("assistant", "hm")] * said, limits=LIMITS)
    run.ctx.context.tokens, run.ctx.context.limit = tokens, limit
    run.ctx.iteration, run.ctx.context.compacted_at = 10, 10 - since
    assert compaction.is_due(run.ctx) is due


def test_without_a_threshold_it_never_is() -> None:
    run = loop_run(Message("assistant", "hm"))
    run.ctx.context.tokens, run.ctx.context.limit = 100, 100
    assert not compaction.is_due(run.ctx)


@pytest.mark.parametrize(
    ("tokens", "warned", "lines", "now"),
    [(69, 0, 0, 0), (70, 0, 1, 1), (84, 1, 0, 1), (85, 1, 1, 2), (99, 0, 1, 2), (99, 2, 0, 2), (10, 2, 0, 2)],
)
def test_a_threshold_is_logged_once_when_it_is_passed(tokens: int, warned: int, lines: int, now: int) -> None:
    run, logger = loop_run(), Lines()
    run.ctx.context.tokens, run.ctx.context.limit, run.ctx.context.warned = tokens, 100, warned
    with scope({}, logger):
        compaction.warn(run)
    assert logger.lines == [("context.filling", tokens, 100)] * lines
    assert run.ctx.context.warned == now


async def test_everything_since_the_beginning_becomes_one_message() -> None:
    calls = tuple(ToolCall(str(n), "look", "{}") for n in range(5))
    said = [
        Message("system", f"{compaction.HEADING}\n- earlier one\n- earlier two"),
        Message("assistant", "I look", calls),
        *(Message("tool", f"result {n}", tool_call_id=str(n), name="look") for n in range(5)),
        Message("assistant", "x  y\n" * 200),
        Message("assistant", ""),
        Message("user", "go on"),
    ]
    memory = Notebook()
    run = loop_run(*said, limits=LIMITS, memory=memory)
    run.ctx.context.tokens, run.ctx.context.warned, run.ctx.completion.mark, run.ctx.iteration = 90, 2, 1, 7
    await compaction.compact(run)
    assert run.ctx.messages[0] == USER
    (summary,) = run.ctx.messages[1:]
    assert summary.role == "system"
    assert summary.text.splitlines() == [
        compaction.HEADING,
        "- earlier one",
        "- earlier two",
        "- assistant called look, look, look, look, look. I look",
        "- result of look: result 2",
        "- result of look: result 3",
        "- result of look: result 4",
        f"- assistant: {('x y ' * 60)[:239]}…",
        "- user: go on",
    ]
    assert memory.summaries == [("r", summary)]
    context = run.ctx.context
    assert (context.tokens, context.warned, context.compacted_at) == (0, 0, 7)
    assert (run.ctx.completion.mark, run.ctx.spent.compactions) == (-1, 1)
    assert [(fact.operation, fact.outcome) for fact in facts(run, OperationAttempt)] == [("compaction", "ok")]


async def compacted(lines: int, times: int, limits: Limits) -> list[str]:
    """Compact `times` times, with so many new lines before each; return the lines of the last summary."""
    run = loop_run(limits=limits)
    run.ctx.context.limit = limits.context_limit
    for number in range(times):
        run.ctx.messages += [Message("user", f"line {number}.{at}") for at in range(lines)]
        await compaction.compact(run)
    return run.ctx.messages[-1].text.splitlines()


async def test_a_summary_does_not_grow_with_the_number_of_compactions() -> None:
    limits = Limits(context_limit=10_000, compaction_threshold=0.8)
    lengths = [len("\n".join(await compacted(50, times, limits))) for times in (1, 20, 40, 200)]
    assert lengths[0] < 2_000
    assert all(7_500 < length <= 8_100 for length in lengths[1:])


async def test_the_newest_lines_are_kept_and_the_number_of_the_others_is_the_sum() -> None:
    limits = Limits(context_limit=1_000, compaction_threshold=0.8)
    heading, left_out, *kept = await compacted(100, 30, limits)
    assert heading == compaction.HEADING
    assert left_out == f"- {3_000 - len(kept)} earlier lines are left out"
    assert kept == [f"- user: line {at // 100}.{at % 100}" for at in range(3_000 - len(kept), 3_000)]
    assert 1_900 < sum(len(line) + 1 for line in kept) <= 2_000


async def test_a_single_line_that_is_longer_than_the_rest_allows_leaves_the_earlier_ones_out() -> None:
    limits = Limits(context_limit=100, compaction_threshold=0.8)
    run = loop_run(*(Message("user", f"{number} " + "x" * 300) for number in range(20)), limits=limits)
    await compaction.compact(run)
    _, left_out, *kept = run.ctx.messages[-1].text.splitlines()
    assert left_out == f"- {20 - len(kept)} earlier lines are left out"
    assert kept[-1].startswith("- user: 19 xxx")


@pytest.mark.parametrize(("length", "kept"), [(199, 10), (200, 9)])
async def test_lines_are_kept_up_to_the_last_character_that_is_allowed(length: int, kept: int) -> None:
    line = "x" * (length - len("- user: "))
    run = loop_run(*(Message("user", line) for _ in range(12)), limits=Limits(context_limit=100))
    await compaction.compact(run)
    _, left_out, *lines = run.ctx.messages[-1].text.splitlines()
    assert (len(lines), left_out) == (kept, f"- {12 - kept} earlier lines are left out")


async def test_nothing_is_left_out_of_an_empty_conversation() -> None:
    run = loop_run()
    await compaction.compact(run)
    assert run.ctx.messages[-1].text == compaction.HEADING

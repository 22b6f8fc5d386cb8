"""Limits of the loop: what is refused at once, and what every guard says one before, at and one after its limit."""

from __future__ import annotations

import copy
import inspect
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message, Usage
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.llm_loop.graph import may_continue, may_restart, verdicts, whole_budgets
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.machines.llm_loop.model import LoopContext, Progress, RunUsage
from orchestrator.machines.pipeline.model import PipelineLimits
from orchestrator.machines.ralph.model import RalphLimits
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator_guards import ObservedCall, Verdict, fingerprint, first_refusal

NUMBERS = [item.name for item in fields(Limits) if isinstance(getattr(Limits(), item.name), int | float)]


def context(limits: Limits, *, iteration: int = 0, **spent: Any) -> LoopContext:
    return LoopContext([Message("user", "go")], limits, 1, iteration=iteration, spent=RunUsage(**spent))


# ---- validation ----


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_a_negative_limit_or_none_at_all_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"limit {name} is (-1|nan); it must be"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    "limits", [Limits, PipelineLimits, RalphLimits, RlmLimits, ApprovalLimits], ids=lambda kind: kind.__name__
)
def test_a_limit_that_a_journal_could_not_keep_is_refused(limits: type[Any]) -> None:
    """JSON has no infinity and the journal no whole number beyond 64 bits: such a run could never be resumed."""
    for item in fields(limits):
        wrong: tuple[float, ...] = {int: (2**63, 10**5000), float: (math.inf, 2**63)}.get(
            type(item.default), ()
        )
        for value in wrong:
            with pytest.raises(
                ConfigError, match=f"{item.name} is more than a journal can keep; it must be 0"
            ):
                limits(**{item.name: value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tool_caps": [("search", 1)]}, r"tool_caps is \[\('search', 1\)\]; it must be \{tool: calls\}"),
        ({"tool_caps": 3}, r"tool_caps is 3; it must be \{tool: calls\}"),
        ({"context_warnings": 0.7}, r"context_warnings is 0.7; it must be shares, as \(0.7, 0.85\)"),
        ({"context_warnings": "0.7"}, "context_warnings is '0.7'; it must be shares"),
        ({"context_warnings": [None]}, r"context_warnings is \[None\]; it must be shares"),
    ],
)
def test_a_limit_of_several_numbers_says_its_form(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"limit {said}"):
        Limits(**given)


@pytest.mark.parametrize("name", ["wrap_up_share", "compaction_threshold"])
@pytest.mark.parametrize("value", [1, 1.5])
def test_a_share_is_below_one(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"limit {name} is {value}; it must be at least 0 and below 1"):
        Limits(**{name: value})


@pytest.mark.parametrize("share", [-0.1, 0, 1.1, float("nan")])
def test_a_warning_threshold_is_a_share_of_the_context(share: float) -> None:
    with pytest.raises(ConfigError, match="limit context_warnings has"):
        Limits(context_warnings=(0.5, share))


def test_a_negative_cap_is_refused_with_its_tool() -> None:
    with pytest.raises(ConfigError, match=r"limit tool_caps\['send'\] is -1"):
        Limits(tool_caps={"search": 2, "send": -1})


@pytest.mark.parametrize("turns", [2, 7])
def test_at_most_one_turn_is_kept_back(turns: int) -> None:
    with pytest.raises(ConfigError, match=f"limit wrap_up_turns is {turns}; it must be 0 or 1"):
        Limits(wrap_up_turns=turns)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_iteration": 3}, "unknown limit 'max_iteration'; did you mean 'max_iterations'?"),
        ({"timeout": 3}, "unknown limit 'timeout'; known: max_iterations, max_tool_errors,"),
    ],
)
def test_a_limit_that_is_none_is_told_with_the_one_that_was_meant(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(**given)
    assert str(caught.value).startswith(said)


def test_limits_are_given_by_name() -> None:
    with pytest.raises(ConfigError, match=r"give limits by name, as Limits\(max_iterations=3\)"):
        Limits(3)  # type: ignore[call-arg]


def test_limits_are_copied_and_described_as_any_dataclass() -> None:
    limits = Limits(max_iterations=3, tool_caps={"Send": 1})
    assert copy.copy(limits) == copy.deepcopy(limits) == replace(limits) == limits
    assert list(inspect.signature(Limits).parameters) == [item.name for item in fields(Limits)]


def test_the_defaults_are_those_of_the_seed() -> None:
    limits = Limits()
    assert (limits.max_iterations, limits.max_tool_errors, limits.max_repeated_success) == (100, 10, 3)
    assert (limits.max_no_progress, limits.max_concurrent_tools, limits.completion_retries) == (3, 10, 2)
    assert (limits.max_restarts, limits.compaction_threshold, limits.context_warnings) == (
        0,
        0.0,
        (0.70, 0.85),
    )


def test_warnings_are_sorted_and_caps_take_names_in_any_case() -> None:
    limits = Limits(context_warnings=(0.9, 0.5), tool_caps={"Send": 1})
    assert limits.context_warnings == (0.5, 0.9)
    assert limits.tool_caps == {"send": 1}


def test_limits_without_any_ask_nothing_but_the_unlimited_iterations() -> None:
    ctx = context(OFF, iteration=10**9, usage=Usage(10**9, 10**9, cost=1e9), seconds=1e9, retries=10**9)
    assert verdicts(ctx) == [Verdict(ok=True, guard="iterations", observed=10**9, limit=0)]
    assert first_refusal(whole_budgets(ctx)) is None


# ---- every budget at n - 1, n, n + 1 ----

BUDGETS: dict[str, tuple[str, Any, Any]] = {
    "max_iterations": ("iterations", 10, lambda n: {"iteration": n}),
    "max_input_tokens": ("input_tokens", 10, lambda n: {"usage": Usage(input_tokens=n)}),
    "max_output_tokens": ("output_tokens", 10, lambda n: {"usage": Usage(output_tokens=n)}),
    "max_cost": ("cost", 10.0, lambda n: {"usage": Usage(cost=n)}),
    "max_seconds": ("elapsed", 10.0, lambda n: {"seconds": n}),
}


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize(("used", "ok"), [(9, True), (10, False), (11, False)])
def test_a_budget_of_ten_lets_a_turn_start_as_long_as_less_is_used(name: str, used: int, ok: bool) -> None:
    guard, limit, spent = BUDGETS[name]
    ctx = context(replace(OFF, **{name: limit}), **spent(used))
    verdict = may_continue(ctx)
    assert verdict.ok is ok
    assert (first_refusal(whole_budgets(ctx)) is None) is ok
    if not ok:
        assert (verdict.guard, verdict.observed, verdict.limit) == (guard, used, limit)
        assert first_refusal(whole_budgets(ctx)) == verdict


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize(
    ("used", "soft", "hard"), [(7, True, True), (8, False, True), (9, False, True), (10, False, False)]
)
def test_with_a_turn_kept_back_its_share_is_refused_to_others_only(
    name: str, used: int, soft: bool, hard: bool
) -> None:
    _, limit, spent = BUDGETS[name]
    ctx = context(replace(OFF, **{name: limit}, wrap_up_turns=1, wrap_up_share=0.2), **spent(used))
    if name == "max_iterations":  # there the share is one turn
        soft = used < 9
    assert bool(may_continue(ctx)) is soft
    assert (first_refusal(whole_budgets(ctx)) is None) is hard
    ctx.wrapping_up = True
    assert bool(may_continue(ctx)) is hard


@pytest.mark.parametrize(
    ("turns", "used", "ok"), [(1, 0, True), (1, 1, False), (2, 0, True), (2, 1, False), (0, 99, True)]
)
def test_a_turn_is_kept_back_inside_the_iterations_but_not_of_a_single_one(
    turns: int, used: int, ok: bool
) -> None:
    ctx = context(replace(OFF, max_iterations=turns, wrap_up_turns=1), iteration=used)
    assert bool(may_continue(ctx)) is ok


@pytest.mark.parametrize(("streak", "ok"), [(2, True), (3, False), (4, False)])
def test_the_worst_tool_decides_about_errors(streak: int, ok: bool) -> None:
    ctx = context(replace(OFF, max_tool_errors=3))
    ctx.progress = Progress(error_streaks={"good": 1, "bad": streak, "fair": 2})
    verdict = may_continue(ctx)
    assert verdict.ok is ok
    assert ok or (verdict.guard, verdict.detail) == ("tool_errors", "bad")


@pytest.mark.parametrize(("turns", "ok"), [(3, True), (4, False), (5, False)])
def test_three_repeats_are_four_equal_turns(turns: int, ok: bool) -> None:
    ctx = context(replace(OFF, max_no_progress=3))
    turn = fingerprint([ObservedCall("look", "{}", "same")])
    ctx.turns = (turn,) * turns
    assert may_continue(ctx).ok is ok


def test_used_up_retries_do_not_keep_a_turn_from_starting() -> None:
    assert may_continue(context(replace(OFF, max_retries=2), retries=2))


def test_what_the_run_did_is_named_before_what_it_used() -> None:
    ctx = context(
        replace(OFF, max_iterations=3, max_tool_errors=1, max_cost=1.0), iteration=3, usage=Usage(cost=2.0)
    )
    assert may_continue(ctx).guard == "cost"
    ctx.progress.error_streaks["bad"] = 1
    assert may_continue(ctx).guard == "tool_errors"
    assert [verdict.guard for verdict in verdicts(ctx)] == ["tool_errors", "cost", "iterations"]


def test_a_refusal_that_was_made_stands() -> None:
    ctx = context(OFF)
    ctx.verdict = Verdict(ok=False, guard="tool_cap", observed=2, limit=2)
    assert may_continue(ctx) is ctx.verdict


@pytest.mark.parametrize(
    ("limit", "done", "ok"), [(0, 0, False), (1, 0, True), (1, 1, False), (2, 1, True), (2, 2, False)]
)
def test_restarts_have_a_limit_and_zero_is_off(limit: int, done: int, ok: bool) -> None:
    verdict = may_restart(context(replace(OFF, max_restarts=limit), restarts=done))
    assert verdict.ok is ok
    assert ok or verdict.guard == "restarts"


def test_no_restart_beyond_the_iterations() -> None:
    ctx = context(replace(OFF, max_restarts=5, max_iterations=4), iteration=4)
    assert may_restart(ctx).guard == "iterations"
    assert not may_restart(ctx)

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import orchestrator_guards as guards
from orchestrator_guards import Verdict, first_refusal
from tests.guards import package


def test_a_verdict_is_true_when_it_agrees() -> None:
    assert Verdict(ok=True, guard="iterations")
    assert not Verdict(ok=False, guard="iterations")


def test_a_verdict_without_numbers_has_counted_nothing_and_has_no_limit() -> None:
    assert Verdict(ok=True, guard="iterations") == (True, "iterations", 0, 0, "")


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (guards.iterations(20, 20), "iterations: 20 of 20 used"),
        (guards.input_tokens(1_000_000, 2_000_000), "input_tokens: 1000000 of 2000000 used"),
        (guards.cost(250_000, 1_500_000), "cost: 0.25 of 1.5 used"),
        (guards.cost_unknown(1, model="m"), "cost_unknown: the price of model 'm' is unknown"),
        (guards.elapsed(30.0, 60), "elapsed: 30 of 60 used"),
        (guards.retries(3, 0), "retries: 3 used, no limit"),
        (guards.tool_cap("search", 2, 2), "tool_cap: 2 of 2 used (search)"),
        (guards.tool_errors("search", 3, 3), "tool_errors: 3 of 3 used (search)"),
        (guards.elapsed(0.1234567, 60), "elapsed: 0.123457 of 60 used"),
        (guards.elapsed(0.5, 0.0), "elapsed: 0.5 used, no limit"),
        (guards.elapsed(1.0, 1), "elapsed: 1 of 1 used"),
        (guards.host_budget(1), "host_budget: 1 of 1 used (the host's own budget is exhausted)"),
        (guards.host_budget(0), "host_budget: 0 of 1 used"),
        (guards.cost_unknown(0, model="m"), "cost_unknown: "),
        (guards.affordable(1, 2, 1.5), "affordable: 3 of 1 used (the stage needs 3, 1 are left)"),
        (guards.affordable(3, 2, 1.5), "affordable: 3 of 3 used"),
    ],
)
def test_a_verdict_explains_itself_in_one_sentence(verdict: Verdict, sentence: str) -> None:
    assert verdict.explain() == sentence


def test_the_first_refusal_is_found_and_later_guards_are_not_asked() -> None:
    asked = []

    def verdicts() -> Iterator[Verdict]:
        for name, ok in (("iterations", True), ("cost", False), ("elapsed", False)):
            asked.append(name)
            yield Verdict(ok, name)

    refusal = first_refusal(verdicts())

    assert refusal == Verdict(ok=False, guard="cost")
    assert asked == ["iterations", "cost"]


def test_no_refusal_is_none() -> None:
    assert first_refusal([guards.iterations(1, 2), guards.cost(0, 0)]) is None
    assert first_refusal([]) is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (package.INIT, package.init_text),
        (package.VERDICT, package.verdict_text),
        (package.README, package.readme_text),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_guard_is_exported_named_and_described(file: Path, text: Callable[[], str]) -> None:
    assert file.read_text(encoding="utf-8") == text(), "if the difference is wanted, run `make accept`"


def test_the_public_names_exist_and_nothing_else_is_public() -> None:
    modules = {
        "approval",
        "attempts",
        "budget",
        "condition",
        "evaluation",
        "gate",
        "guardrail",
        "money",
        "quality",
        "repetition",
        "result",
        "turn",
        "verdict",
        "annotations",
    }
    visible = {name for name in vars(guards) if not name.startswith("_")} - modules

    assert set(guards.__all__) == visible

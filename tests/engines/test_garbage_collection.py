"""The garbage collector of a process with thousands of runs: less work, and garbage is still found."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.process import (
    THRESHOLDS,
    garbage_collection_setting,
    tune_garbage_collection,
    worker_setting,
)
from orchestrator.errors import ConfigError
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing import ScriptedLLM


class Node:
    """An object that refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the collector of the test process, whose own objects were frozen after the collection of tests."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_present_objects_are_excluded_from_further_visits() -> None:
    present = [[] for _ in range(1_000)]  # type: ignore[var-annotated]
    frozen = gc.get_freeze_count()
    tune_garbage_collection()
    assert gc.get_freeze_count() >= frozen + len(present)
    assert not {id(one) for one in gc.get_objects()} & {id(one) for one in present}


def test_thresholds_are_those_of_the_worker_unless_others_are_given() -> None:
    tune_garbage_collection()
    assert gc.get_threshold()[:2] == THRESHOLDS[:2]
    tune_garbage_collection((20_000, 10, 20))
    assert gc.get_threshold()[:2] == (20_000, 10)


def test_garbage_of_the_start_is_freed_and_not_frozen() -> None:
    gone = weakref.ref(Node())
    assert gone() is not None
    tune_garbage_collection()
    assert gone() is None


def test_garbage_made_later_is_freed_without_a_call_of_the_collector() -> None:
    tune_garbage_collection((100, 5, 5))
    gone = weakref.ref(Node())
    for _ in range(100_000):
        if gone() is None:
            break
        Node()
    assert gone() is None


def test_the_setting_is_told_as_the_interpreter_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tune_garbage_collection((12_345, 7, 9))
    assert "thresholds 12,345, 7, " in garbage_collection_setting()
    assert worker_setting() == ", ".join(f"{one:,}" for one in THRESHOLDS)
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    assert garbage_collection_setting().endswith("garbage collection off")


# ---- an engine inside a host ----


def engine(thresholds: Any) -> LocalEngine:
    """Return an engine of its own, with these thresholds."""
    return LocalEngine(Agent(ScriptedLLM([]), observers=()), gc_thresholds=thresholds)


async def test_an_engine_leaves_the_collector_of_its_host_alone() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    async with engine(None):
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() <= frozen
    assert gc.get_threshold() == before


async def test_an_engine_sets_its_thresholds_until_it_has_drained_and_freezes_nothing() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    async with engine((20_000, 10, 20)):
        assert gc.get_threshold()[:2] == (20_000, 10)
        assert gc.get_freeze_count() <= frozen, "frozen objects only become fewer"
    assert gc.get_threshold() == before


async def test_an_engine_that_is_left_by_an_error_restores_the_collector() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError):
        async with engine((20_000, 10, 20)):
            raise ZeroDivisionError
    assert gc.get_threshold() == before


@pytest.mark.parametrize("first_ends_first", [True, False])
async def test_of_two_engines_the_later_one_applies_and_the_last_one_restores(first_ends_first: bool) -> None:
    before = gc.get_threshold()
    first, second = engine((20_000, 10, 20)), engine((30_000, 11, 21))
    await first.start()
    await second.start()
    assert gc.get_threshold()[:2] == (30_000, 11)
    await (first if first_ends_first else second).drain()
    assert gc.get_threshold()[:2] == ((30_000, 11) if first_ends_first else (20_000, 10))
    await (second if first_ends_first else first).drain()
    assert gc.get_threshold() == before


async def test_thresholds_that_the_host_sets_meanwhile_stay() -> None:
    async with engine((20_000, 10, 20)):
        gc.set_threshold(1_234, 5, 6)
    assert gc.get_threshold()[:2] == (1_234, 5)


@pytest.mark.parametrize("wrong", [(1, 2), (0, 10, 10), (1, 2, 3.0), "700", 700, (True, 10, 10)])
def test_what_is_no_thresholds_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"gc_thresholds is .*; give three whole numbers of 1 or more"):
        engine(wrong)

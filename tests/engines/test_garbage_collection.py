"""The garbage collector of a process with thousands of runs: less work, and garbage is still found."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from orchestrator.engines.process import (
    THRESHOLDS,
    garbage_collection_setting,
    tune_garbage_collection,
    worker_setting,
)


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

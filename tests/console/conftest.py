"""Fixtures of the console's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator import MemoryJournal, Runs
from orchestrator.console.feed import MachineReader
from orchestrator.console.search_index import SearchIndex
from tests.console.browsing import Processes, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session", autouse=True)
def _pages_wait_for_what_is_read() -> Iterator[None]:
    """A page waits 0.12 s for what the console reads in the background: too short on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchIndex.find, "__kwdefaults__", {"ids": True, "patience": 30.0})
        patch.setattr(MachineReader.window, "__defaults__", (30.0,))
        yield


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def runs(journal: MemoryJournal) -> Runs:
    return Runs(journal)


@pytest.fixture(scope="module")
def _chromium() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """A browser whose pages close with the test: they would ask for its console for as long as they are open."""
    yield _chromium
    for context in _chromium.contexts:
        context.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.stop()

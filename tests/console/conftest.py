"""Fixtures of the console's tests."""

from __future__ import annotations

import pytest

from orchestrator import MemoryJournal, Runs


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def runs(journal: MemoryJournal) -> Runs:
    return Runs(journal)

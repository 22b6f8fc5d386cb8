"""A memory in a SQLite file, for the tests of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.journal.sqlite.conversation import SqliteMemory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the memory lies; neither it nor its folder is there yet."""
    return tmp_path / "store" / "memory.db"


@pytest.fixture
def memory(path: Path) -> Iterator[SqliteMemory]:
    """A memory that is open."""
    opened = SqliteMemory(path)
    asyncio.run(opened.open())
    yield opened
    asyncio.run(opened.close())

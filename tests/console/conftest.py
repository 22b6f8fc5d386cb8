"""Fixtures of the console's tests."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import pytest
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from orchestrator import MemoryJournal, Runs
from orchestrator.console import pages
from tests.console.browsing import Processes, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class CompiledTemplates(BytecodeCache):
    """Compiled templates of the session, by name and source."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._found.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._found[bucket.key, bucket.checksum] = bucket.code


@pytest.fixture(scope="session", autouse=True)
def _templates_are_compiled_once() -> Iterator[None]:
    """An application compiles each template that it shows: most of the time of a test that makes one."""
    compiling = functools.partial(Environment, bytecode_cache=CompiledTemplates())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "Environment", compiling)
        yield


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def runs(journal: MemoryJournal) -> Runs:
    return Runs(journal)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.stop()

"""A console that reads no texts and no histories of runs before its folder has a file `read`.

`python -m tests.console.gated console OPTIONS` is `orchestrator console OPTIONS`, which reads them later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.console.search_index import SearchIndex
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.listing import read_run_history

GATE = "read"
_take = SearchIndex._take


async def _opened() -> None:
    while not Path(GATE).exists():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.02)


async def _take_later(index: SearchIndex, heads: Sequence[RunHead]) -> None:
    await _opened()
    await _take(index, heads)


async def _read_later(*arguments: Any) -> Any:
    await _opened()
    return await read_run_history(*arguments)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchIndex, "_take", _take_later)
        patch.setattr("orchestrator.console.feed.read_run_history", _read_later)
        main()

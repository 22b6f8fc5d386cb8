"""The benchmark of the console runs, and prints every figure."""

from __future__ import annotations

import pytest

from tests.benchmarks import console


@pytest.mark.campaign
def test_every_figure_of_the_console_is_printed() -> None:
    found = console.measure(runs=300, turns=40, idle=0.5)
    assert set(found.pages) == set(console.ADDRESSES)
    assert min(found.run_ms, found.alone, found.watched) > 0
    assert len(console.lines(found)) == 5

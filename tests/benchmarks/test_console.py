"""The benchmark of the console runs, and prints every figure."""

from __future__ import annotations

import pytest

from tests.benchmarks import console


@pytest.mark.campaign
@pytest.mark.system("chromium")
def test_every_figure_of_the_console_is_printed() -> None:
    found = console.measure(turns=40, branches=60, idle=0.5)
    assert set(found.paints) == set(console.PAINTED)
    assert all(paint > 0 for paint, _ in found.paints.values())
    assert all(size < console.BYTES_AIM for _, size in found.paints.values())
    assert min(found.run_ms, found.alone, found.watched) > 0
    assert len(console.lines(found)) == len(console.PAINTED) + 3

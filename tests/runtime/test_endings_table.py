"""The table of endings in the guide of the machines: every row is what a run reports now."""

from __future__ import annotations

import re

import pytest

from orchestrator.cli.shipped import SHIPPED
from tests.derived import HINT, ROOT
from tests.endings_table import ENDINGS, GUIDE, line_of, row_of


def told(graph: str) -> list[str]:
    """Return the rows of a graph in the guide."""
    found = re.search(
        r"<!-- endings -->\n(.*?)<!-- /endings -->", (ROOT / GUIDE).read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    return [line for line in found[1].splitlines() if line.startswith(f"| {graph} |")]


def test_the_table_has_every_graph() -> None:
    assert set(ENDINGS) == set(SHIPPED)


@pytest.mark.parametrize("graph", ENDINGS)
async def test_each_ending_of_a_graph_is_as_the_guide_says(graph: str) -> None:
    rows = [line_of(await row_of(graph, ending, run)) for ending, run in ENDINGS[graph]().items()]
    assert rows == told(graph), HINT

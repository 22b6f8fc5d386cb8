"""The probes of features: ours are tried here, and what the tables say is what was observed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.peers.features.__main__ import RESULTS, cell_of
from tests.benchmarks.peers.features.catalogue import FEATURES, LIBRARIES, Feature
from tests.benchmarks.peers.features.table import FIGURES, comparison
from tests.benchmarks.peers.features.trial import Broken, Trial
from tests.derived import HINT, PLACES, ROOT

FOUND: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
ROWS = {row["name"]: row for row in FOUND["features"]}


@pytest.mark.campaign
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_ours_does_what_the_table_says(feature: Feature) -> None:
    cell = cell_of(feature, "ours", Path(sys.executable))
    assert cell._asdict() == ROWS[feature.name]["cells"]["ours"]


def test_every_feature_was_tried_with_every_library() -> None:
    assert list(ROWS) == [feature.name for feature in FEATURES]
    for row in ROWS.values():
        assert row["cells"].keys() == LIBRARIES.keys()
        assert all(cell["value"] and cell["observed"] for cell in row["cells"].values())
    assert FOUND["versions"].keys() == LIBRARIES.keys()


def test_the_tables_of_the_guides_are_those_of_the_results() -> None:
    for place in PLACES:
        if place.name in {"comparison", "evidence"}:
            text = (ROOT / place.file).read_text(encoding="utf-8")
            assert place.filled(text) == text, HINT


def test_the_table_has_a_row_for_each_feature_and_each_figure() -> None:
    rows = comparison().splitlines()
    assert len(rows) == 3 + len(FEATURES) + len(FIGURES)
    assert {len(row.split("|")) for row in rows} == {len(LIBRARIES) + 4}


@pytest.mark.campaign
def test_a_probe_that_does_not_die_where_it_must_is_no_observation(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="cancel did not die"):
        Trial(Path(sys.executable), "ours", tmp_path).run("cancel", dies=True)

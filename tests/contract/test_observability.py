"""The facts, the keys of each log line and the metrics that a run of each machine produces.

`tests/data/golden/observability.json` lists them for one successful run of each machine. Log keys, metric
names and members of a run's totals are an interface: users notice a difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.shipped import SHIPPED
from orchestrator.telemetry.catalogue import CATALOGUE, PREFIX
from orchestrator.telemetry.log import KEYS
from tests.derived import HINT, OBSERVABILITY, ROOT
from tests.observability import MACHINES, seen

EVERYWHERE = frozenset(("RunStarted", "Transition", "JournalWrite"))
"""Facts that every machine publishes with a durable journal."""


def catalogue() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / OBSERVABILITY).read_text())
    return found


@pytest.mark.parametrize("name", MACHINES)
async def test_each_machine_produces_the_facts_log_keys_and_metrics_of_the_catalogue(
    name: str, tmp_path: Path
) -> None:
    assert await seen(name, tmp_path) == catalogue()[name], HINT


def test_the_catalogue_has_every_machine_that_is_shipped_and_only_known_names() -> None:
    listed = catalogue()
    assert listed.keys() == MACHINES.keys() == SHIPPED.keys()
    for name, one in listed.items():
        assert set(one["facts"]) >= EVERYWHERE, name
        assert set().union(*one["log"].values()) <= KEYS, name
        families = {sample.partition("{")[0] for sample in one["metrics"]}
        known = {f"{PREFIX}{metric.name}{end}" for metric in CATALOGUE for end in ("", "_count")}
        assert families <= known, name

"""Try every feature with every library and write `results/features.json`: `make bench-features`, about a minute.

A part of it (`--only`, `--libraries`) prints what was observed and writes nothing. `--ergonomics` and `--team` run the
programs of `tests/benchmarks/peers/ergonomics` and `tests/benchmarks/peers/team` instead.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.contestant import NotMeasured
from tests.benchmarks.peers.ergonomics import run as ergonomics
from tests.benchmarks.peers.features.catalogue import FEATURES, LIBRARIES, Feature
from tests.benchmarks.peers.features.trial import Cell, Trial, Unable
from tests.benchmarks.peers.roster import ROSTER, Entry
from tests.benchmarks.peers.team import run as team

RESULTS = Path(__file__).parents[2] / "results" / "features.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Try, print, and write."""
    options = _options(arguments)
    if options.ergonomics:
        ergonomics.main(options.environments.absolute(), options.libraries)
        return
    if options.team:
        team.main(options.environments.absolute(), options.libraries)
        return
    entries = [one for one in ROSTER if one.name in LIBRARIES]
    libraries = [one for one in entries if not options.libraries or one.name in options.libraries.split(",")]
    features = [one for one in FEATURES if not options.only or one.name in options.only.split(",")]
    found = tried(features, libraries, options.environments.absolute(), install=not options.offline)
    if len(features) == len(FEATURES) and len(libraries) == len(entries):
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"written: {RESULTS}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-features", description=__doc__)
    parser.add_argument("--only", default="", help="only these features, by name, with commas between")
    parser.add_argument("--libraries", default="", help="only these, by name, with commas between")
    parser.add_argument("--ergonomics", action="store_true", help="the same agent written with each library")
    parser.add_argument("--team", action="store_true", help="the same team of agents with four libraries")
    parser.add_argument("--offline", action="store_true", help="install nothing")
    parser.add_argument("--environments", type=Path, required=True, help="folder of the environments")
    return parser.parse_args(arguments)


def tried(
    features: Sequence[Feature], libraries: Sequence[Entry], root: Path, *, install: bool
) -> dict[str, Any]:
    """Return a cell for each feature and library. Raises Broken, NotMeasured."""
    interpreters = {one.name: one.interpreter(root, install=install) for one in libraries}
    versions = {name: _versions(interpreter, name) for name, interpreter in interpreters.items()}
    rows = []
    for feature in features:
        print(feature.title)
        cells = {}
        for name, interpreter in interpreters.items():
            cell = cell_of(feature, name, interpreter)
            cells[name] = cell._asdict()
            print(f"  {name:15} {cell.value:12} {cell.observed}", flush=True)
        rows.append({"name": feature.name, "title": feature.title, "cells": cells})
    return {"taken": time.strftime("%Y-%m-%d"), "versions": versions, "features": rows}


def cell_of(feature: Feature, library: str, interpreter: Path) -> Cell:
    """Return what a library does about a feature. Raises Broken."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return feature.judge(Trial(interpreter, library.replace("-", "_"), Path(folder)))
        except Unable as why:
            return why.cell


def _versions(interpreter: Path, library: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, str] = Trial(interpreter, library.replace("-", "_"), Path(folder)).run("cancel")[
            "versions"
        ]
        return found


if __name__ == "__main__":
    try:
        main()
    except NotMeasured as why:
        raise SystemExit(str(why)) from why

"""The whole of `make bench-peers` at tiny sizes, with whoever runs in our own environment: nothing is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks import cases, plot, report
from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.peers.roster import ROSTER

HERE = {"ours", "ours, bare", "hand", "transitions"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    peers.main(
        ["--quick", "--results", str(folder), "--environments", str(tmp_path_factory.mktemp("environments"))]
    )
    return folder


@pytest.fixture(scope="module")
def told(results: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((results / "peers.json").read_text())
    return content


@pytest.mark.campaign
def test_every_contestant_has_a_figure_or_a_reason_in_every_workload(told: dict[str, Any]) -> None:
    names = [entry.name for entry in ROSTER]
    assert [one["name"] for one in told["workloads"]] == [case.name for case in cases.QUICK]
    for case, workload in zip(cases.QUICK, told["workloads"], strict=True):
        assert list(workload["contestants"]) == names
        for name, figures in workload["contestants"].items():
            assert ("not_measured" in figures) != (case.figures[0] in figures), (case.name, name)


@pytest.mark.campaign
def test_whoever_runs_in_our_environment_was_measured_and_the_others_say_what_is_missing(
    told: dict[str, Any],
) -> None:
    for workload in told["workloads"]:
        able = HERE - {"hand", "transitions"} if workload["kind"] in ("journalled", "resume") else HERE
        able = able - {"hand", "ours, bare"} if workload["kind"] == "footprint" else able
        for name, figures in workload["contestants"].items():
            if name in able:
                assert figures["rounds"] >= 1
                assert all(low <= median <= high for median, low, high in _spreads(figures)), (workload, name)
            elif name not in HERE:
                assert (
                    figures["not_measured"] == "its environment is not there, and nothing was to be installed"
                )
            else:
                assert figures["not_measured"]


def _spreads(figures: dict[str, Any]) -> list[list[float]]:
    return [value for value in figures.values() if isinstance(value, list)]


@pytest.mark.campaign
def test_the_yardsticks_are_one_and_costs_are_plausible(told: dict[str, Any]) -> None:
    by_name = {one["name"]: one["contestants"] for one in told["workloads"]}
    turns = by_name["50 turns, 1 tool (tiny)"]
    assert turns["hand"]["cpu_us_per_turn"][0] > 0
    assert turns["ours"]["cpu_us_per_turn_to_hand"][0] > 1
    waiting = by_name["200 ms model, 1 tool (tiny)"]["hand"]
    assert waiting["p95_ms"][0] >= 2, "the model's answers take 2 ms in the tiny case"
    crowd = by_name["10,000 runs wait for a 1 s model (tiny)"]["ours"]
    assert crowd["kib_per_run"][0] > 0
    assert crowd["turns_per_cpu_s"][0] > 0


@pytest.mark.campaign
def test_versions_machine_and_what_each_does_more_or_less_are_with_the_figures(told: dict[str, Any]) -> None:
    assert {"taken", "python", "cores", "system", "sync_ms"} <= set(told["machine"])
    for one in told["contestants"]:
        assert one["remark"].endswith(".")
        assert ("versions" in one) != ("not_measured" in one)
    versions = {one["name"]: one.get("versions") for one in told["contestants"]}
    assert versions["transitions"] == {"transitions": "0.9.3"}


@pytest.mark.campaign
def test_the_plot_is_drawn_from_the_figures(results: Path, told: dict[str, Any]) -> None:
    picture = (results / "peers.svg").read_text()
    texts = ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314  we drew it
    said = ["".join(one.itertext()) for one in texts]
    for title, _, values in plot.points(told):
        assert title in said
        assert plot.label(values) in said
    assert len(plot.points(told)) == len(HERE)
    assert any(one.endswith("0 µs") for one in said)
    assert "prefers-color-scheme: dark" in picture


def test_a_contestant_without_one_of_the_figures_is_drawn_with_the_other() -> None:
    figures = {"slow": {"cpu_us_per_turn": [2_000.0, 1.0, 3_000.0]}}, {"slow": {"not_measured": "too slow"}}
    told = {
        "machine": {"python": "CPython", "cores": 2, "system": "Linux", "taken": "2026-01-01"},
        "contestants": [{"name": "slow", "title": "Slow"}, {"name": "absent", "title": "Absent"}],
        "workloads": [
            {"name": name, "contestants": one} for name, one in zip(cases.PLOTTED, figures, strict=True)
        ],
    }
    picture = plot.svg(told)
    assert "2,000 / not measured" in picture
    assert picture.count('cx="') == 3, "two of the legend, one of the figure"
    assert "Absent" not in picture


def test_the_committed_plot_is_the_one_of_the_committed_figures() -> None:
    told = json.loads((peers.RESULTS / "peers.json").read_text())
    assert (peers.RESULTS / "peers.svg").read_text() == plot.svg(told)
    assert {one["name"] for one in told["contestants"]} == {entry.name for entry in ROSTER}
    assert [one["name"] for one in told["workloads"]] == [case.name for case in cases.CASES]
    assert (peers.RESULTS / "peers.json").read_text() == report.text(told), "nobody laid it out by hand"


@pytest.mark.campaign
def test_a_part_measured_again_replaces_its_own_figures_and_keeps_the_others(tmp_path: Path) -> None:
    def measured(only: str) -> dict[str, dict[str, Any]]:
        peers.main(
            [
                *("--quick", "--only", only, "--contestants", "hand"),
                *("--results", str(tmp_path), "--environments", str(tmp_path)),
            ]
        )
        told = json.loads((tmp_path / "peers.json").read_text())
        return {one["name"]: one["contestants"] for one in told["workloads"]}

    first = measured("50 turns")
    assert set(measured("100 runs")) > set(first)
    again = measured("50 turns")
    assert set(again) == set(first) | {case.name for case in cases.QUICK if "100 runs" in case.name}
    assert again["50 turns, 1 tool (tiny)"] != first["50 turns, 1 tool (tiny)"]
    assert list(again) == [case.name for case in cases.QUICK if case.name in again], "in the cases' order"


@pytest.mark.campaign
def test_a_case_that_there_was_no_time_for_says_so_for_everybody(tmp_path: Path) -> None:
    peers.main(
        [
            *("--quick", "--only", "5 tools", "--contestants", "hand,burr", "--minutes", "0"),
            *("--results", str(tmp_path), "--environments", str(tmp_path)),
        ]
    )

    told = json.loads((tmp_path / "peers.json").read_text())
    reasons = [one["not_measured"] for case in told["workloads"] for one in case["contestants"].values()]
    assert reasons == ["the 0 minutes given were over"] * 2 * len(told["workloads"])
    assert len(reasons) >= 2


def test_a_part_that_names_no_case_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"nothing to measure: contestants are ours.*cases are 50 turns"):
        peers.main(["--environments", str(tmp_path), "--only", "no such case"])

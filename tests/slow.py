"""`python -m tests.slow`: the CPU time of each test, of the processes that it starts included.

    python -m tests.slow                              a run of `make test`
    python -m tests.slow --tier campaign              a run of `make campaign`
    python -m tests.slow --top 80 -- tests/cli        the 80 slowest of a folder; what follows `--` is for pytest
    python -m tests.slow --before build/slow.json     the table of a former run beside that of this one

CPU time is what a test costs on any machine; its wall time depends on what runs beside it. Of processes only those
count that were waited for, so a process that is killed with its parent is free. What a fixture of a session does is
counted for the test that asked for it first, and its end for the last test of the worker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.tiers import SELECTED, selecting

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ROOT / "build" / "slow.json"
SHARES = 1, 2, 5, 10


class Cost(NamedTuple):
    """What a test, or a group of tests, costs. All in seconds."""

    own: float = 0.0
    """CPU time of the process that runs the test."""
    processes: float = 0.0
    """CPU time of the processes that it waited for."""
    wall: float = 0.0

    @property
    def cpu(self) -> float:
        return self.own + self.processes

    def plus(self, other: Cost) -> Cost:
        return Cost(*(mine + its for mine, its in zip(self, other, strict=True)))


# ---- the plugin: in each process of pytest ----

_STARTED: pytest.StashKey[Cost] = pytest.StashKey()
_NAME = "cost"


def _now() -> Cost:
    times = os.times()
    return Cost(times.user + times.system, times.children_user + times.children_system, time.perf_counter())


def _since(start: Cost) -> Cost:
    return Cost(*(now - then for now, then in zip(_now(), start, strict=True)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = _now()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        kind = next((name for name in ("bench", "hypothesis") if item.get_closest_marker(name)), "")
        item.user_properties.append((_NAME, {"kind": kind, "cost": [*_since(item.stash[_STARTED])]}))


def pytest_collection_finish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["collection"] = _now().own


class Recorder:
    """Gathers the costs in the process that the reports come to."""

    def __init__(self) -> None:
        self.tests: dict[str, tuple[str, Cost]] = {}
        self.collection: list[float] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if report.when == "teardown" and name == _NAME:
                assert isinstance(value, dict)
                self.tests[report.nodeid] = value["kind"], Cost(*value["cost"])

    def pytest_testnodedown(self, node: Any) -> None:
        self.collection.append(node.workeroutput.get("collection", 0.0))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "slow-recorder")


def pytest_sessionfinish(session: pytest.Session) -> None:
    recorder = session.config.pluginmanager.get_plugin("slow-recorder")
    if recorder is not None:
        WRITTEN.parent.mkdir(exist_ok=True)
        WRITTEN.write_text(json.dumps({"tests": recorder.tests, "collection": recorder.collection}))


# ---- the tables ----


class Run(NamedTuple):
    """A run of a tier."""

    tests: dict[str, tuple[str, Cost]]
    """Id -> its marker (`bench`, `hypothesis` or none), and its cost."""
    collection: list[float]
    """CPU seconds of each worker until the end of its collection."""

    @classmethod
    def read(cls, path: Path) -> Run:
        written = json.loads(path.read_text())
        tests = {name: (kind, Cost(*cost)) for name, (kind, cost) in written["tests"].items()}
        return cls(tests, written["collection"])

    @property
    def total(self) -> Cost:
        return _sum(cost for _, cost in self.tests.values())

    def slowest(self) -> list[tuple[str, Cost]]:
        return sorted(((name, cost) for name, (_, cost) in self.tests.items()), key=lambda pair: -pair[1].cpu)

    def by(self, key: Callable[[str, str, Cost], str]) -> dict[str, list[Cost]]:
        groups: dict[str, list[Cost]] = defaultdict(list)
        for name, (kind, cost) in self.tests.items():
            groups[key(name, kind, cost)].append(cost)
        return dict(sorted(groups.items(), key=lambda pair: -_sum(pair[1]).cpu))


def _sum(costs: Iterable[Cost]) -> Cost:
    total = Cost()
    for cost in costs:
        total = total.plus(cost)
    return total


def kind_of(_: str, marker: str, cost: Cost) -> str:
    """Return the kind of a test: what its time is spent on."""
    if marker:
        return {"bench": "benchmarks", "hypothesis": "properties"}[marker]
    return "processes" if cost.processes > cost.own else "in process"


def folder_of(name: str, _: str, __: Cost) -> str:
    return "/".join(name.partition("::")[0].split("/")[:2])


def file_of(name: str, _: str, __: Cost) -> str:
    return name.partition("::")[0]


def table(run: Run, top: int) -> str:
    """Return the tables of a run: its slowest tests, and its kinds, folders and files."""
    total = run.total
    slowest = run.slowest()
    lines = [
        f"{len(run.tests):,} tests: {total.cpu:,.0f} CPU s, of which {total.processes:,.0f} in processes",
        f"collection: {sum(run.collection):.0f} CPU s in {len(run.collection)} workers",
    ]
    for share in SHARES:
        count = max(1, len(slowest) * share // 100)
        part = sum(cost.cpu for _, cost in slowest[:count])
        lines.append(f"the slowest {share:2} % ({count:,} tests) use {part / (total.cpu or 1):.0%} of it")
    for title, key, limit in (("kind", kind_of, 9), ("folder", folder_of, 99), ("file", file_of, top)):
        lines += ["", f"{title:62} {'tests':>7} {'own':>8} {'processes':>10} {'wall':>8}"]
        for name, costs in list(run.by(key).items())[:limit]:
            cost = _sum(costs)
            lines.append(f"{name:62} {len(costs):7,} {cost.own:8.1f} {cost.processes:10.1f} {cost.wall:8.1f}")
    lines += ["", f"{'own':>8} {'processes':>10} {'wall':>8}  test"]
    lines += [
        f"{cost.own:8.2f} {cost.processes:10.2f} {cost.wall:8.2f}  {name}" for name, cost in slowest[:top]
    ]
    return "\n".join(lines)


def beside(before: Run, after: Run) -> str:
    """Return the kinds and folders of two runs beside each other, in CPU seconds."""
    lines = [f"{'':40} {'tests before':>13} {'after':>8} {'CPU s before':>14} {'after':>8}"]
    for key in (kind_of, folder_of):
        then, now = before.by(key), after.by(key)
        for name in sorted(then.keys() | now.keys(), key=lambda name: -_sum(then.get(name, ())).cpu):
            old, new = then.get(name, []), now.get(name, [])
            lines.append(f"{name:40} {len(old):13,} {len(new):8,} {_sum(old).cpu:14.1f} {_sum(new).cpu:8.1f}")
        lines.append("")
    cpu = f"{before.total.cpu:14.1f} {after.total.cpu:8.1f}"
    lines.append(f"{'all':40} {len(before.tests):13,} {len(after.tests):8,} {cpu}")
    lines.append(
        f"{'collection':40} {'':13} {'':8} {sum(before.collection):14.1f} {sum(after.collection):8.1f}"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slow", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tier", choices=[*SELECTED], default="test")
    parser.add_argument(
        "--top", type=int, default=40, metavar="N", help="slowest tests and files; default 40"
    )
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="a copy of build/slow.json of a former run"
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help="run nothing: the tables of this file")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    before = Run.read(options.before) if options.before else None
    code = 0 if options.show else run_tier(options.tier, options.arguments)
    run = Run.read(options.show or WRITTEN)
    tables = [f"Python {platform.python_version()}, {os.cpu_count()} CPUs", table(run, options.top)]
    if before is not None:
        tables += ["", beside(before, run)]
    print("\n".join(tables))  # noqa: T201  the tables are what this program is for
    return code


def run_tier(tier: str, arguments: Sequence[str]) -> int:
    """Run a tier with the plugin and return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.slow", *selecting(tier), *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "TEST_TIER": tier}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

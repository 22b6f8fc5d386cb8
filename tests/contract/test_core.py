"""The core is an island: it runs in a tree that has nothing of what stands around it.

`AROUND` is the other side. What is not in it is core, and takes names of that side only from `orchestrator.around`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_layers import ROOT, imports, modules, within

AROUND: dict[str, str] = {
    "orchestrator.__main__": "the command line",
    "orchestrator.cli": "commands for people; a host that embeds the core calls the library",
    "orchestrator.backtest": "the public names of backtests",
    "orchestrator.console": "pages about runs, read from a journal",
    "orchestrator.drawing": "pictures of graphs; the core has them as tables",
    "orchestrator.engines.dbos": "a dispatcher by way of a library",
    "orchestrator.engines.procrastinate": "a dispatcher by way of a library",
    "orchestrator.engines.served_agent": "agents as tools of an MCP server",
    "orchestrator.evaluation": "the public names of evaluations",
    "orchestrator.examples": "programs that use the core",
    "orchestrator.journal.postgres": "a store by way of a library",
    "orchestrator.notification": "the public names of notifications",
    "orchestrator.ops": "dashboards, rules and runbooks, generated from the metrics",
    "orchestrator.project": "files of a new project",
    "orchestrator.providers.mcp": "tools of servers, by way of a library",
    "orchestrator.providers.named_model": "finds models of every kind by a text",
    "orchestrator.providers.pydantic_ai": "models by way of a library",
    "orchestrator.providers.pydantic_ai_request": "models by way of a library",
    "orchestrator.providers.replay": "a double that answers from a recording",
    "orchestrator.repl": "processes for the code of models; a host may bring its own",
    "orchestrator.runtime.backtest": "reads recorded runs again",
    "orchestrator.runtime.evaluation": "judges runs that have ended",
    "orchestrator.runtime.notification": "tells people of runs that wait",
    "orchestrator.runtime.run_replay": "executes recorded runs again",
    "orchestrator.testing.replay": "a test of a recorded run",
}
"""Module or folder -> why the core does without it. Settings and the other doubles of `testing` are core: the limits of
a process are read by the former, and the tests of the core are written with the latter."""

CORE = ("kernel", "guards", "callbacks", "machines", "journal")
"""Folders with the tests of the core; those of messages, tools and addresses are beside them."""
OTHER_STORE = re.compile(r"postgres|test_head_counts")
"""Tests of the store that stands around the core, and of both stores at once."""


def is_around(name: str) -> bool:
    return any(within(name, part) for part in AROUND)


@pytest.mark.check
def test_the_core_names_what_stands_around_it_in_one_registry_only() -> None:
    known = modules(ROOT)
    named = []
    for name, file in known.items():
        if is_around(name) or name == "orchestrator.around":
            continue
        for line, imported in imports(name, file, known):
            if is_around(imported):
                named.append(f"{file.relative_to(ROOT)}:{line}: {imported}")
    assert named == [], "take it from orchestrator.around"


@pytest.mark.check
def test_every_part_around_the_core_is_there() -> None:
    known = modules(ROOT)
    assert [part for part in AROUND if part not in known] == []


@pytest.mark.campaign
def test_the_tests_of_the_core_pass_in_a_tree_without_what_stands_around_it(tmp_path: Path) -> None:
    """All but the properties: other values reach no other imports, and what the tree lacks can only be imported."""
    tree = tmp_path / "core"
    # With the bytecode, which is valid for a copy with the same times, but not what is just being written of it.
    ignored = shutil.ignore_patterns("*.pyc.*", ".*_cache")
    for folder in ("orchestrator", "callbacks", "guards", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tree)
    for part in AROUND:
        path = tree / Path(*part.split("."))
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.with_suffix(".py").unlink()
    tests = [
        *(tree / "tests").glob("test_*.py"),
        *(file for folder in CORE for file in (tree / "tests" / folder).rglob("test_*.py")),
    ]
    files = sorted(str(file) for file in tests if not OTHER_STORE.search(file.name))
    ours = os.pathsep.join(str(tree / root) for root in (".", "callbacks", "guards"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not campaign and not check and not hypothesis",
            *files,
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": ours, "PYTEST_ADDOPTS": "", "TEST_TIER": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]

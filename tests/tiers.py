"""Which tests run where: `make test` runs what a person waits for, `make campaign` the rest, CI both.

A test that reads sources or guides and runs none of them has the marker `check`: `make check` runs it, beside the
linters, and no other tier.

A test is in the campaign where it kills, stops or watches processes of ours: that takes seconds, of which the machine
does little. The rules below find most of them; a test that starts processes by itself has the marker `campaign`. At
least one test of each file is in `make test` too (`canary`), so that no path into a process is first tried on CI. The
whole corpus of conversations is played there too; `make test` plays the copies in tests/data/trajectories.

The tests of a property run in both: in the campaign with as many examples as hypothesis makes by default, in `make
test` with fewer. `make soak` is every test at full size.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.environment import of_user

ROOT = Path(__file__).resolve().parent.parent

CAMPAIGN = "campaign"
CHECK = "check"
CANARY = "canary"
SELECTED = {"test": "not campaign and not check", CAMPAIGN: "campaign or hypothesis"}
"""The expression that `make test` and `make campaign` give to `pytest -m`."""

MINUTES = {"make test": 3, "make campaign": 11, ".ci/run": 19}
"""How long each takes on two cores with nothing else to do. README.md, CONTRIBUTING.md and the Makefile say so."""

FOLDERS = frozenset(("crash",))
"""Folders of tests/ with nothing but campaigns."""
FIXTURES = frozenset(("start", "process", "program"))
"""Fixtures that start a process of ours: the command line, or an engine."""

SOAK = (of_user("ORCHESTRATOR_SOAK") or "0") != "0"
IN_CAMPAIGN = SOAK or os.environ.get("TEST_TIER") == CAMPAIGN
"""Not a name of ours with ORCHESTRATOR_: the commands under test refuse a setting that they do not know."""
EXAMPLES = 5_000 if SOAK else 100 if IN_CAMPAIGN else 30
"""Of each property."""

TIERS: pytest.StashKey[dict[Path, Counter[str]]] = pytest.StashKey()
"""File -> tests that were collected in it, by tier, before any was deselected."""


def examples(count: int, full: int | None = None) -> int:
    """How many examples a property has that wants `count` of them in the campaign, and `full` in `make soak`."""
    if SOAK:
        return full or 10 * count
    return count if IN_CAMPAIGN else max(10, count * 3 // 10)


def reaching(count: int, full: int | None = None) -> int:
    """How many examples a property has that must reach certain cases: fewer would miss them at times."""
    return (full or 10 * count) if SOAK else count


def selecting(tier: str) -> list[str]:
    """Return the arguments of pytest for a tier, as the Makefile has them; TEST_TIER must name the tier, too."""
    return ["-n", "auto", "--dist", "loadfile", "-m", SELECTED[tier]]


def is_canary(item: pytest.Item) -> bool:
    """Whether it has the marker; `canary("a", "b")` is for the cases of a test with these ids."""
    mark = item.get_closest_marker(CANARY)
    case = getattr(item, "callspec", None)
    return mark is not None and (not mark.args or (case is not None and case.id in mark.args))


def is_campaign(item: pytest.Item) -> bool:
    return (
        item.get_closest_marker(CAMPAIGN) is not None
        or _folder(item.path) in FOLDERS
        or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    )


@functools.cache
def _folder(file: Path) -> str:
    """Return the folder of tests/ in which a file lies."""
    return file.relative_to(ROOT / "tests").parts[0]


def sort_into_tier(item: pytest.Item) -> None:
    """Mark an item `campaign` where it is one, take the mark from a canary, and count the item."""
    in_campaign = is_campaign(item) and not is_canary(item)
    if in_campaign:
        item.add_marker(CAMPAIGN)
    else:
        item.own_markers[:] = [mark for mark in item.own_markers if mark.name != CAMPAIGN]
        if item.get_closest_marker(CAMPAIGN) is not None:
            raise pytest.UsageError(
                f"{item.nodeid} is a canary in a module that is marked campaign as a whole"
            )
    counted = item.config.stash.setdefault(TIERS, {}).setdefault(item.path, Counter())
    counted[CAMPAIGN if in_campaign else CHECK if item.get_closest_marker(CHECK) else "test"] += 1

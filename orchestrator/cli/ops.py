"""`orchestrator ops`: dashboards, rules and runbooks as files, and the dashboards as a page."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.shipped import SHIPPED, named
from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.ops.pack import dashboards, pack, write
from orchestrator.ops.render import Prometheus, TimeWindow, page
from orchestrator.ops.rule import Profile
from orchestrator.telemetry.catalogue import table

METRICS = """# Every metric

Written by `orchestrator ops export` from `orchestrator/telemetry/catalogue.py`. The column *made from* names the
source: facts of runs, a reading at each scrape, `orchestrator metrics serve`, or a batch job at its end.

"""

MOST_POINTS = 200
"""Most points of a line on the page."""


def export_pack(
    folder: Path, graphs: Sequence[str], *, kubernetes: bool, runbooks: str, labels: Sequence[str] = ()
) -> int:
    """Write the pack for these graphs and print the changed files."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder, it is made where there is none")
    profile = Profile(runbooks=runbooks.rstrip("/"), labels=routing_labels(labels))
    texts = whole(_graphs(graphs), profile, kubernetes=kubernetes)
    changed = write(folder, texts)
    for file in changed:
        say(f"{file}")
    say(f"{many(len(texts), 'file')} in {folder}, {len(changed)} written; the others were so already")
    return Exit.COMPLETED


def whole(graphs: Sequence[Graph], profile: Profile, *, kubernetes: bool = False) -> dict[str, str]:
    """Return path -> text of every file: the pack, and the table of its metrics."""
    return {**pack(graphs, profile=profile, kubernetes=kubernetes), "metrics.md": METRICS + table()}


def render_page(
    server: str, file: Path, graphs: Sequence[str], *, minutes: float, machine: str, agent: str, rate: str
) -> int:
    """Draw the dashboards from a live Prometheus into one file."""
    if minutes <= 0:
        raise ConfigError(f"--minutes is {minutes:g}; it says how far back to look and is more than 0")
    seconds = minutes * 60
    window = TimeWindow(
        end=time.time(),
        seconds=seconds,
        step=max(1, seconds / MOST_POINTS),
        variables={"job": ".*", "instance": ".*", "machine": machine, "agent": agent},
        rate=rate,
    )
    file.write_text(page(dashboards(_graphs(graphs)), Prometheus(server), window), encoding="utf-8")
    say(f"{file}")
    return Exit.COMPLETED


def _graphs(names: Sequence[str]) -> list[Graph]:
    found = [named(name) for name in names] if names else list(SHIPPED.values())
    doubles = {graph.name for graph in found if sum(other.name == graph.name for other in found) > 1}
    if doubles:
        raise ConfigError(
            f"two graphs are called {', '.join(sorted(doubles))}; metrics tell graphs apart by name"
        )
    return found


_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_OF_RULES = frozenset(
    ("alertname", "severity", "component", "long", "short", "job", "instance", "machine", "agent")
)


def routing_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return the labels that `--label NAME=VALUE` gives to every alert. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value or not _LABEL_NAME.match(name):
            raise ConfigError(
                f"--label {text!r} is not NAME=VALUE with letters, digits and _; write for example team=agents"
            )
        if name in _OF_RULES or name in found:
            raise ConfigError(
                f"--label {name} is set already; choose another name than {', '.join(sorted({*_OF_RULES, *found}))}"
            )
        found[name] = value
    return found

"""Generate all files of a folder `dashboards/`, for any graphs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path

from orchestrator.kernel.graph import Graph
from orchestrator.ops.alert import NAMES
from orchestrator.ops.grafana import grafana_json
from orchestrator.ops.kubernetes import manifests
from orchestrator.ops.operations import OPERATIONS
from orchestrator.ops.panel import Dashboard
from orchestrator.ops.rule import Profile
from orchestrator.ops.rule_file import alerts_yaml, rules_yaml, trial_files
from orchestrator.ops.run_flow import run_flow

WRITTEN_BY_HAND = (
    "alertmanager/example.yml",
    "consoles/orchestrator.html",
    "consoles/orchestrator.lib",
    "prometheus/scrape-example.yml",
    *(f"runbooks/{name}.md" for name in NAMES),
)
"""Files of the pack that are not generated."""


def dashboards(graphs: Sequence[Graph]) -> tuple[Dashboard, ...]:
    """Return every dashboard."""
    return (OPERATIONS, run_flow(graphs))


def pack(
    graphs: Sequence[Graph], *, profile: Profile | None = None, kubernetes: bool = False
) -> dict[str, str]:
    """Return path -> text of every file. `kubernetes` adds manifests with the same content."""
    profile = profile or Profile()
    drawn = {f"{page.uid.removeprefix('orchestrator-')}.json": page for page in dashboards(graphs)}
    json = {name.replace("-", "_"): grafana_json(page) for name, page in drawn.items()}
    found = {f"grafana/{name}": text for name, text in json.items()}
    found["prometheus/rules.yml"] = rules_yaml(graphs, profile)
    found["prometheus/alerts.yml"] = alerts_yaml(profile)
    found |= {f"prometheus/{name}": text for name, text in trial_files(graphs, profile).items()}
    found |= {path: shipped(path) for path in WRITTEN_BY_HAND}
    if kubernetes:
        made = manifests(graphs, json, profile)
        found |= {f"kubernetes/{name}": text for name, text in made.items()}
    return dict(sorted(found.items()))


def shipped(path: str) -> str:
    """Return a file of the package."""
    place: Traversable = package_files("orchestrator.ops") / "files"
    return place.joinpath(*path.split("/")).read_text(encoding="utf-8")


def write(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write the files to a folder and return the changed ones. Other files there stay."""
    changed = []
    for path, text in texts.items():
        file = folder / path
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        changed.append(file)
    return changed

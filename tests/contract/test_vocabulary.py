"""One concept has one name, and one name means one concept."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("orchestrator", "callbacks/orchestrator_callbacks", "guards/orchestrator_guards")


def sources() -> dict[Path, ast.Module]:
    """Return the modules of the packages, by path from the root."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {file.relative_to(ROOT): ast.parse(file.read_text(encoding="utf-8")) for file in files}


SOURCES = sources()


def test_no_public_class_name_is_used_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file}:{node.lineno}")
    assert len(places) > 700, "the packages were not read"
    assert {name: found for name, found in places.items() if len(found) > 1} == {}

"""A small project with a plan for it, and what the command line says about them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.examples.plan import PLAN, SHOP

OURS = ".orchestrator"
STEPS = ("1", "2", "3", "4", "5")


class Shop:
    """A folder with the example project in it, and the example plan beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shop"
        self.plan = folder / "plan.toml"
        self.folder.mkdir()
        for file in SHOP.iterdir():
            (self.folder / file.name).write_bytes(file.read_bytes())
        self.plan.write_bytes(PLAN.read_bytes())
        self.before = self.tree()

    @property
    def here(self) -> tuple[str, str]:
        """The option that names the project."""
        return ("--project", str(self.folder))

    @property
    def submit(self) -> tuple[str, ...]:
        """The command line that hands in the example plan."""
        return ("approval", "submit", "Keep the prices in one file.", "--plan", str(self.plan), *self.here)

    def says(self, document: dict[str, Any]) -> None:
        """Replace the plan."""
        self.plan = self.plan.with_suffix(".json")
        self.plan.write_text(json.dumps(document))

    def tree(self) -> dict[str, str]:
        """Path -> kind, mode and digest of everything but ours."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder)
            if name.parts[0] == OURS:
                continue
            what = (
                hashlib.sha256(path.read_bytes()).hexdigest()
                if path.is_file() and not path.is_symlink()
                else ""
            )
            found[name.as_posix()] = f"{path.lstat().st_mode:o} {what}"
        return found

    def read(self, name: str) -> str:
        """Return what is in a file."""
        return (self.folder / name).read_text()


@pytest.fixture
def shop(folder: Path) -> Shop:
    """The example project in an empty working directory."""
    return Shop(folder)


def one_change(path: str = "notes.txt", content: str = "new\n") -> dict[str, Any]:
    """Return a plan document that creates one file."""
    step = {"id": "1", "kind": "create", "title": "A note", "files": [{"path": path, "content": content}]}
    return {"goal": "A note.", "steps": [step]}

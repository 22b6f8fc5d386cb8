"""The README of a folder names every file in it; CONTRIBUTING.md names no other files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [
    ("orchestrator/kernel", "orchestrator/kernel"),
    ("orchestrator/engines", "orchestrator/engines"),
    ("orchestrator/machines", "orchestrator/machines/llm_loop"),
    ("orchestrator/machines", "orchestrator/machines/approval"),
    ("callbacks", "callbacks/orchestrator_callbacks/llm_loop"),
    ("callbacks", "callbacks/orchestrator_callbacks/approval"),
    ("guards", "guards/orchestrator_guards"),
    ("orchestrator/repl", "orchestrator/repl"),
]
"""The folder of a README, and the folder whose files it names."""


@pytest.mark.parametrize(("readme", "folder"), FOLDERS, ids=[folder for _, folder in FOLDERS])
def test_the_readme_names_every_file_of_its_folder(readme: str, folder: str) -> None:
    named = set(re.findall(r"`(\w+\.py)`", (ROOT / readme / "README.md").read_text(encoding="utf-8")))
    there = {file.name for file in (ROOT / folder).glob("*.py") if file.name != "__init__.py"}
    assert there - named == set()


OTHERS = {"_config.py", "engines/base.py", "_tool_manager.py", "callbacks.py"}
"""Files of other projects and of hosts, which CONTRIBUTING.md names."""


def test_every_file_that_contributors_read_of_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/.]+\.py)`", text)) - OTHERS
    folders = ("orchestrator", "callbacks", "guards", "tests")
    there = {f"/{file.relative_to(ROOT)}" for folder in folders for file in (ROOT / folder).rglob("*.py")}
    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in there)] == []

"""Each room has a short README: its examples run, its files are all in it."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

import pytest

from tests.contract.test_readme import ROOT, _run, blocks

ROOMS = {
    "orchestrator/kernel": "orchestrator/kernel",
    "orchestrator/engines": "orchestrator/engines",
    "orchestrator/machines": "orchestrator/machines/llm_loop",
    "callbacks": "callbacks/orchestrator_callbacks/llm_loop",
    "guards": "guards/orchestrator_guards",
    "orchestrator/repl": "orchestrator/repl",
}
"""Room -> the folder whose files its README names."""
FOLDERS = [
    *ROOMS.items(),
    ("orchestrator/machines", "orchestrator/machines/approval"),
    ("callbacks", "callbacks/orchestrator_callbacks/approval"),
]
LONGEST = 180
"""Lines of a README, examples included."""


@pytest.mark.parametrize("room", ROOMS)
def test_the_readme_is_short_and_its_examples_run(room: str, tmp_path: Path) -> None:
    readme = ROOT / room / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    examples = [block.text for block in blocks(readme) if block.language == "python"]
    assert examples
    for example in examples:
        if example.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(example, {}, room, str(readme), 0)
            assert doctest.DocTestRunner().run(test).failed == 0
            continue
        script = tmp_path / "example.py"
        script.write_text(example, encoding="utf-8")
        done = _run([sys.executable, "-W", "error", str(script)], cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("room", "folder"), FOLDERS, ids=[folder for _, folder in FOLDERS])
def test_the_readme_names_every_file_of_its_room(room: str, folder: str) -> None:
    named = set(re.findall(r"`(\w+\.py)`", (ROOT / room / "README.md").read_text(encoding="utf-8")))
    there = {file.name for file in (ROOT / folder).glob("*.py") if file.name != "__init__.py"}
    assert there - named == set()

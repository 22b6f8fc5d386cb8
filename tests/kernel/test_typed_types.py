"""S, E and C as type checkers infer them: a file of cases, given to mypy and to pyright, both strict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/data/types/typed_machine.py.txt"


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    file = tmp_path / "cases.py"
    file.write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    return file


def refused() -> set[int]:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert len(marked) == 13
    return marked


def test_mypy_infers_states_events_and_context(cases: Path, tmp_path: Path) -> None:
    # The lazy package names every module of the library under TYPE_CHECKING: half a minute, and nothing to this.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-orchestrator]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", f"--cache-dir={tmp_path / 'cache'}", "--follow-imports=silent"]
    command += ["--no-error-summary", "--hide-error-context", str(cases)]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "callbacks", ROOT / "guards")))
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {int(line.split(":")[1]) for line in errors} == refused(), done.stdout + done.stderr


@pytest.mark.campaign
def test_pyright_infers_states_events_and_context(cases: Path, tmp_path: Path) -> None:
    config = {
        "include": [str(cases)],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT), str(ROOT / "callbacks"), str(ROOT / "guards")],
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(tmp_path)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    assert {one["range"]["start"]["line"] + 1 for one in errors} == refused(), done.stdout

"""Type checkers in strict mode, on a file of cases whose wrong lines end with `# refused`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/data/types"


def copied(name: str, folder: Path) -> Path:
    """Return a copy of a file of cases that checkers accept as Python."""
    file = folder / "cases.py"
    file.write_text((CASES / name).read_text(encoding="utf-8"), encoding="utf-8")
    return file


def refused(file: Path) -> set[int]:
    """Return the numbers of the lines that must have an error."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}


def expected(file: Path) -> dict[int, tuple[str, str]]:
    """Return line -> the rule of pyright and the part of mypy's message, of lines with `# refused: RULE, TEXT`."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    found = [(number, line.partition("  # refused: ")[2]) for number, line in lines]
    return {number: (said.partition(", ")[0], said.partition(", ")[2]) for number, said in found if said}


def messages(report: str) -> dict[int, str]:
    """Return line -> errors, from a report of mypy."""
    found: dict[int, str] = {}
    for line in report.splitlines():
        if ": error: " in line:
            number = int(line.split(":")[1])
            found[number] = found.get(number, "") + line
    return found


def rules(report: str) -> dict[int, set[str]]:
    """Return line -> rules of the errors, from a report of pyright."""
    found: dict[int, set[str]] = {}
    for one in json.loads(report)["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(one["range"]["start"]["line"] + 1, set()).add(str(one.get("rule", "")))
    return found


def mypy(file: Path, *, skipped: str = "") -> tuple[list[int], str]:
    """Return the line of each error, and the report. `skipped` is a module whose imports mypy does not read."""
    folder = file.parent
    settings = f"[mypy-{skipped}]\nfollow_imports = skip\n" if skipped else ""
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\n{settings}")
    command = [sys.executable, "-m", "mypy", f"--cache-dir={folder / 'cache'}", "--follow-imports=silent"]
    command += ["--no-error-summary", "--hide-error-context", str(file)]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "callbacks", ROOT / "guards")))
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "MYPYPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    return [int(line.split(":")[1]) for line in errors], done.stdout + done.stderr


def pyright(file: Path) -> tuple[list[int], str]:
    """Return the line of each error, and the report."""
    config = {
        "include": [str(file)],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT), str(ROOT / "callbacks"), str(ROOT / "guards")],
        "pythonVersion": "3.11",
    }
    (file.parent / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(file.parent)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    return [one["range"]["start"]["line"] + 1 for one in errors], done.stdout

"""Type checkers in strict mode, on files of cases whose wrong lines end with `# refused`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/data/types"
PATHS = [str(ROOT), str(ROOT / "callbacks"), str(ROOT / "guards")]

Errors = dict[str, dict[int, list[str]]]
"""File of cases -> line -> its errors: messages of mypy, rules of pyright."""


def refused(name: str) -> dict[int, tuple[str, str]]:
    """Return wrong line -> what `# refused: RULE, TEXT` says: the rule of pyright, a part of mypy's message, or ""."""
    lines = enumerate((CASES / f"{name}.py.txt").read_text(encoding="utf-8").splitlines(), 1)
    found = {number: said for number, line in lines for said in re.findall("  # refused(?:: (.*))?$", line)}
    return {number: (said.partition(", ")[0], said.partition(", ")[2]) for number, said in found.items()}


def mypy(names: Sequence[str], folder: Path, *, skipped: str = "") -> Errors:
    """Return what mypy says. `skipped` is a module whose imports it does not read."""
    settings = f"[mypy-{skipped}]\nfollow_imports = skip\n" if skipped else ""
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\n{settings}")
    command = [sys.executable, "-m", "mypy", f"--cache-dir={folder / 'cache'}", "--follow-imports=silent"]
    command += ["--no-error-summary", "--hide-error-context", *_copied(names, folder)]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(PATHS)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found: Errors = {}
    for name, line, said in re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found.setdefault(name, {}).setdefault(int(line), []).append(said)
    return found


def pyright(names: Sequence[str], folder: Path) -> Errors:
    """Return what pyright says."""
    config = {
        "include": _copied(names, folder),
        "typeCheckingMode": "strict",
        "extraPaths": PATHS,
        "pythonVersion": "3.11",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(folder)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found: Errors = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            lines = found.setdefault(Path(one["file"]).stem, {})
            lines.setdefault(one["range"]["start"]["line"] + 1, []).append(one.get("rule", ""))
    return found


def _copied(names: Sequence[str], folder: Path) -> list[str]:
    """Copy files of cases into a folder under names that checkers accept as Python, and return these names."""
    for name in names:
        (folder / f"{name}.py").write_bytes((CASES / f"{name}.py.txt").read_bytes())
    return [f"{name}.py" for name in names]

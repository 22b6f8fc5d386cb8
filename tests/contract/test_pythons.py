"""The wheel with its core dependencies, and nothing else, runs an embedding on each Python we promise."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEPENDENCIES: list[str] = PROJECT["dependencies"]
RUNNING = "{}.{}".format(*sys.version_info)


def interpreter(version: str) -> Path | None:
    """The interpreter of that version on PATH or under pyenv. A name may exist and not run: each is asked."""
    if version == RUNNING:
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = shutil.which(f"python{version}")
    candidates = [Path(found)] if found else []
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    for candidate in candidates:
        asked = subprocess.run([candidate, "--version"], check=False, capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
            return candidate
    return None


def pip(python: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """This environment's pip, working for another interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *args],
        check=False,
        capture_output=True,
        text=True,
    )


def core_dependencies(python: Path, folder: Path, scratch: Path) -> str:
    """Install the locked core into a folder; returns what went wrong, or nothing.

    pip takes no hashes in constraints, so these are the lock's versions without them.
    """
    pins = re.findall(r"^([^\s#].*?) *\\?$", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    constraints = scratch / "constraints.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    staged = folder.with_name(f"{folder.name}.{os.getpid()}")
    done = pip(python, "--target", staged, "--constraint", constraints, *DEPENDENCIES)
    if done.returncode:
        return done.stderr
    staged.replace(folder)  # whole or not at all
    return ""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_runs_an_embedding(
    version: str,
    wheel: Path,
    host: Path,
    tmp_path: Path,
    absent: Callable[[str], NoReturn],
    pytestconfig: pytest.Config,
) -> None:
    python = interpreter(version)
    if python is None:
        # Not a failure on CI either: its machine has the Python that it runs us with, which is always tested.
        pytest.skip(f"no Python {version} on PATH or under pyenv")
    digest = hashlib.sha256(LOCK.read_bytes() + repr(DEPENDENCIES).encode()).hexdigest()[:16]
    core = pytestconfig.cache.mkdir("core") / f"{version}-{digest}"
    if not core.exists() and (problem := core_dependencies(python, core, tmp_path)):
        absent(f"pip cannot install the core for Python {version}: {problem.strip()[-300:]}")

    ours = tmp_path / "ours"
    assert pip(python, "--no-deps", "--no-index", "--target", ours, wheel).returncode == 0
    done = subprocess.run(
        [python, "-S", host],  # -S: no site-packages, so what is not core is not there
        cwd=host.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ours), str(core)])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["python"] == [int(part) for part in version.split(".")]
    assert said["outcome"] == "completed"
    assert Path(said["file"]).is_relative_to(ours)

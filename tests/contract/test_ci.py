"""`.ci/run` with other programs in place of make and apt: the order of its steps, and how a failed step ends it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
[ "$1" = --version ] && echo "Python {version}.1" || echo {version}
"""
MAKE = """#!/bin/sh
echo "make $*" >> done.txt
case "$*" in "$FAILS"*) echo "it went wrong"; exit 2;; esac
echo "7 passed in 1.00s"
"""
APT = """#!/bin/sh
case "$FAILS" in apt) exit 100;; esac
echo "apt-get $*" >> done.txt
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with `.ci`, and `bin` with what it calls."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    programs = {"make": MAKE, "apt-get": APT, "sudo": '#!/bin/sh\nexec "$@"\n', "dpkg": "#!/bin/sh\nexit 1\n"}
    for version in ("3.11", "3.12", "3.13", "3.14", "3.15"):
        there = version in {"3.11", "3.13"}
        programs[f"python{version}"] = PYTHON.format(version=version) if there else "#!/bin/sh\nexit 1\n"
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(clone: Path, fails: str = "nothing") -> tuple[int, list[str], list[str]]:
    """Return the exit code, the lines of the log without their times, and what was called."""
    path = f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [clone / ".ci" / "run"],
        env={**os.environ, "PATH": path, "PYENV_ROOT": str(clone), "FAILS": fails},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [re.sub(r" \(\d+ s since start\)$|: \d+ s$", "", line) for line in done.stdout.splitlines()]
    return done.returncode, lines, (clone / "done.txt").read_text().splitlines()


@pytest.mark.canary
@pytest.mark.campaign
def test_ci_prepares_everything_and_then_runs_one_tier_after_the_other(clone: Path) -> None:
    code, log, called = run(clone)
    assert code == 0
    steps = [line for line in log if line.startswith("== ")]
    packages = next(line for line in steps if line.startswith("== system packages: chromium "))
    assert steps == [
        "== make setup, Python 3.11.1",
        "== make check, Python 3.11.1",
        packages,
        "== make setup, Python 3.13.1",
        "== make test, Python 3.13.1",
        "== make test, Python 3.11.1",
        "== make campaign, Python 3.11.1",
    ]
    # Each but the last says how long it took: the last line is that of pytest.
    assert [line for line in log if line.startswith("-- ")] == [
        line.replace("==", "--", 1) for line in steps[:-1]
    ]
    assert log[-1] == "7 passed in 1.00s"
    assert called[-3:] == [
        "make test PYTHON=python3.13 VENV=.venv-newest",
        "make test PYTHON=python3.11",
        "make campaign PYTHON=python3.11",
    ]
    assert sorted(line.partition(" -")[0] for line in called[:-3]) == [
        "apt-get install",
        "apt-get update",
        "make check PYTHON=python3.11",
        "make setup PYTHON=python3.11",
        "make setup PYTHON=python3.13 VENV=.venv-newest",
    ]


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("fails", "code", "step", "not_called"),
    [
        ("setup PYTHON=python3.11", 2, "make setup, Python 3.11.1", "check"),
        ("check", 2, "make check, Python 3.11.1", "test"),
        ("apt", 100, "system packages: ", "test"),
        ("setup PYTHON=python3.13", 2, "make setup, Python 3.13.1", "test"),
        ("test PYTHON=python3.13", 2, "make test, Python 3.13.1", "test PYTHON=python3.11"),
        ("campaign", 2, "make campaign, Python 3.11.1", "soak"),
    ],
)
def test_a_failed_step_ends_ci_with_its_name_and_exit_code(
    clone: Path, fails: str, code: int, step: str, not_called: str
) -> None:
    ended, log, called = run(clone, fails)
    assert ended == code
    assert log[-1].startswith(f"== FAILED: {step}")
    assert log[-1].endswith(f", exit code {code}")
    assert len([line for line in log if "FAILED" in line]) == 1
    assert not [line for line in called if line.startswith(f"make {not_called}")]
    assert [line for line in called if "python3.13" in line] or fails == "apt", (
        "what runs beside is not broken off"
    )

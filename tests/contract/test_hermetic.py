"""The tests see nothing of their user, and `python -m tests.hermetic` lists what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.kernel.purity import CHECK_PURITY
from orchestrator.tools.tool_error import ON_TOOL_ERROR
from tests import environment
from tests.hermetic import EMPTY

ROOT = Path(__file__).resolve().parents[2]


def test_the_environment_has_what_is_kept_and_new_folders() -> None:
    own = {
        CHECK_PURITY,
        ON_TOOL_ERROR,
        "HOME",
        "TMPDIR",
        "PYTEST_CURRENT_TEST",
        "PYTEST_DEBUG_TEMPROOT",
        "PYTEST_VERSION",
    }
    names = {name for name in os.environ if not environment.KEPT.fullmatch(name)}
    assert {name for name in names if not name.startswith("TEST_USER_")} - environment.FIXED.keys() <= own
    assert Path.home() != Path(environment.of_user("HOME") or "/")
    assert Path(tempfile.gettempdir()).parent == Path.home().parent


def test_installers_get_the_configuration_of_the_user_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("https_proxy", "PIP_INDEX_URL", "ORCHESTRATOR_SEED"):
        monkeypatch.setenv(f"TEST_USER_{name}", "of the user")
    installers = environment.for_installers()
    assert installers["https_proxy"] == installers["PIP_INDEX_URL"] == "of the user"
    assert installers["HOME"] == environment.of_user("HOME")
    assert "ORCHESTRATOR_SEED" not in installers
    assert environment.of_user("ORCHESTRATOR_SEED") == "of the user"


@pytest.mark.campaign
@pytest.mark.system("unshare")
def test_what_tests_leave_behind_is_listed() -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces need root")
    if any(ROOT.is_relative_to(folder) for folder in EMPTY):
        pytest.skip("the tests would not see this clone")
    command = [sys.executable, "-m", "tests.hermetic", "--"]
    command += ["-n", "0", "-p", "no:cacheprovider", "tests/contract/traces.py"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert "left behind" in done.stdout, done.stderr
    said, left = done.stdout.split("left behind:\n")
    assert "2 passed" in said, done.stdout
    assert done.returncode == 1
    *files, process = left.splitlines()
    assert files == ["/dev/shm/trace-in-memory", "/tmp/trace-in-tmp"]  # noqa: S108
    assert process.startswith("process ")
    assert process.endswith(": sleep 1000")

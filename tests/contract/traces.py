"""Not collected by itself: what tests must not do, for the test of `python -m tests.hermetic`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from orchestrator.kernel.purity import CHECK_PURITY
from orchestrator.tools.tool_error import ON_TOOL_ERROR


def test_that_leaves_a_process_and_files() -> None:
    assert Path(tempfile.gettempdir()).is_relative_to("/tmp/Jürgen Groß/t f")  # noqa: S108
    tempfile.mkstemp()  # this one is removed with the folder of the session
    Path("/tmp/trace-in-tmp").touch()  # noqa: S108
    Path("/dev/shm/trace-in-memory").touch()  # noqa: S108
    subprocess.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 &"], check=True)


def test_that_fails_where_it_sees_a_setting_of_the_user() -> None:
    names = ("_KEY", "_PROXY", "ORCHESTRATOR_", "OTEL_", "PROMETHEUS_", "COLOR", "COLUMNS", "PG", "GIT_DIR")
    seen = [name for name in os.environ if any(part in name.upper() for part in names)]
    assert [name for name in seen if not name.startswith("TEST_USER_")] == [CHECK_PURITY, ON_TOOL_ERROR]
    assert os.environ[CHECK_PURITY] != "0"
    assert not [*Path.home().iterdir()]

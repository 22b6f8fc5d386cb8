"""`python -m tests.repeat`: what fails on a disturbed machine is listed with what repeats it, and nothing stays."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = '''
import os, time
from pathlib import Path

def test_that_passes():
    pass

def test_that_believes_in_the_clock(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert abs(time.time() - file.stat().st_mtime) < 1, "the clock stepped"

def test_that_is_lucky():
    """Its seeds are 2, then 3; odd ones fail."""
    runs = Path(__file__).with_name("runs")
    runs.open("a").write("x")
    seed = int(os.environ.get("ORCHESTRATOR_SEED") or 1 + len(runs.read_text()))
    print(f"ORCHESTRATOR_SEED={seed}")
    assert seed % 2 == 0
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tests, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_luck.py").write_text(TESTS)
    return tmp_path


def typed(command: str) -> tuple[int, str]:
    """Run a command that begins with `python`, or with variables before it; return its exit code and its list."""
    variables, words = command.partition("python ")[::2]
    environment = os.environ | dict(word.split("=", 1) for word in variables.split())
    done = subprocess.run(
        [sys.executable, *shlex.split(words)], check=False, capture_output=True, text=True, env=environment
    )
    return done.returncode, re.split(r"^run .* s\n", done.stdout, flags=re.MULTILINE)[-1]


@pytest.mark.campaign
@pytest.mark.system("gcc")
def test_a_clock_that_steps_and_a_seed_are_found_and_their_commands_repeat_them(folder: Path) -> None:
    code, listed = typed(
        "python -m tests.repeat --times 2 --no-load --stepping-clock --seed 8 -- test_luck.py"
    )
    assert code == 1
    titles = re.findall(r"^\S*::(\w+)  failed in (.*)$", listed, re.MULTILINE)
    assert titles == [("test_that_believes_in_the_clock", "2 of 2"), ("test_that_is_lucky", "1 of 2")]
    assert listed.count("AssertionError: the clock stepped") == 2
    assert re.search(r"run 2: .*\n +ORCHESTRATOR_SEED=3\n", listed)

    *_, of_clock, of_seed = re.findall(r"^ +((?:ORCHESTRATOR_SEED=3 )?python .*)$", listed, re.MULTILINE)
    assert "--stepping-clock --seed 9 -- " in of_clock
    for command in (of_clock, of_seed):
        code, again = typed(command)
        assert code == 1
        assert f"{shlex.split(command)[-1]}  failed in 1 of 1" in again


@pytest.mark.campaign
def test_late_threads_are_late_in_the_order_of_their_seed(folder: Path) -> None:
    (folder / "test_threads.py").write_text(
        "import time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def test_pool():\n"
        "    start = time.monotonic()\n"
        "    with ThreadPoolExecutor(1) as pool: results = [*pool.map(str, range(50))]\n"
        "    assert results == [str(number) for number in range(50)]\n"
        "    assert time.monotonic() - start < 0.1, 'the threads were late'\n"
    )
    code, listed = typed(
        "python -m tests.repeat --times 1 --no-load --late-threads --seed 7 -- test_threads.py"
    )
    assert code == 1
    assert "AssertionError: the threads were late" in listed
    assert "--late-threads --seed 7 -- test_threads.py::test_pool" in listed


@pytest.mark.campaign
@pytest.mark.system("gcc")
def test_on_a_slow_disk_temporary_folders_are_on_a_disk_and_what_passes_is_not_listed(folder: Path) -> None:
    (folder / "test_disk.py").write_text(
        "def test_disk(tmp_path): assert str(tmp_path).startswith('/var/tmp/')\n"
        "def test_sync(tmp_path):\n"
        "    import os, time\n"
        "    start = time.monotonic()\n"
        "    with open(tmp_path / 'file', 'w') as file: os.fsync(file.fileno())\n"
        "    assert time.monotonic() - start >= 0.005\n"
    )
    code, listed = typed("python -m tests.repeat --times 1 --no-load --slow-disk -- test_disk.py")
    assert (code, listed) == (0, "no test failed\n")


def test_a_run_that_is_killed_counts_as_failed_and_its_failures_are_listed(folder: Path) -> None:
    (folder / "conftest.py").write_text("from tests.environment import make_neutral\nmake_neutral()\n")
    (folder / "test_killed.py").write_text(
        "import os, signal\n"
        "def test_that_fails(): assert not 'before'\n"
        "def test_that_is_killed(): os.kill(os.getpid(), signal.SIGABRT)\n"
    )
    code, listed = typed("python -m tests.repeat --times 1 --no-load -- test_killed.py")
    assert code == 128 + signal.SIGABRT
    assert "test_killed.py::test_that_fails  failed in 1 of 1" in listed
    assert "run 1: AssertionError: assert not 'before'" in listed


def test_ctrl_c_ends_the_tests_and_the_load(folder: Path) -> None:
    started = folder / "started"
    (folder / "test_long.py").write_text(
        f"import pathlib, time\ndef test_long(): pathlib.Path({str(started)!r}).touch(); time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "tests.repeat", "--", "test_long.py"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True) as running:
        while not started.exists():
            assert running.poll() is None
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        output = running.communicate()[0]
    assert running.returncode == 130
    assert "no test failed" in output
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)

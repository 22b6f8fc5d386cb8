"""The demonstrations of `make`: shown on a pseudo-terminal, and what the guides show of them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.docs import read_guide

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).resolve().parents[2]

NORMAL = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "DATE"),
    (r"kill -9 \d+", "kill -9 PID"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"(--digest|fingerprint) [0-9a-f]{12}", r"\1 DIGITS"),
    (r"in \d+d \d\dh", "in TIME"),
    (r"\b\d+s( ago)?\b", r"TIME\1"),
    (r"\d+\.\d+ s\b", "TIME"),
    (r"(?m)^(  [a-z_]+ +\d+)( +\d+\.\d+){3} +\d+\.\d%$", r"\1 TIMES"),
    (r"--pace \d+", "--pace TIME"),
    (r"→ ([a-z_]+) TIME", r"→ \1"),  # times of almost nothing are left out
    (r"path \(3 transitions\)\n  init (TIME )?→", "path (3 transitions)\n  init →"),
    (r" +", " "),
)
"""What differs from one day, process and machine to the next."""


def normal(text: str) -> list[str]:
    for pattern, stands_for in NORMAL:
        text = re.sub(pattern, stands_for, text)
    return text.strip().splitlines()


def in_guide(topic: str, name: str) -> str:
    text = read_guide(topic)
    found = re.search(rf"<!-- {name} -->\n```text\n(.*?)```\n<!-- /{name} -->", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shown_on_a_terminal("orchestrator.examples.approval_demo", tmp_path_factory.mktemp("elsewhere"))


def shown_on_a_terminal(module: str, folder: Path, change: str = "pass") -> str:
    """What a demonstration shows on a pseudo-terminal of its own; `change` is a statement about `demo`, its module."""
    program = f"import sys, {module} as demo; {change}; sys.exit(demo.main())"
    ours, theirs = pty.openpty()
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "callbacks", "guards"))
    demo = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "error", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    with demo, os.fdopen(ours, "rb", buffering=0) as terminal:
        shown = b""
        while more := _read(terminal.fileno()):
            shown += more
    text = shown.decode().replace("\r\n", "\n")
    assert demo.returncode == 0, text
    return text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""


def test_the_readme_shows_what_the_demonstration_prints(transcript: str) -> None:
    assert normal(in_guide("approvals", "demo-approval")) == normal(transcript)


def test_the_story_has_one_kill_one_answer_that_counts_and_one_effect(transcript: str) -> None:
    steps = re.findall(r"^\$ (kill|cat|orchestrator(?: runs)? \w+)", transcript, re.MULTILINE)
    assert steps == [
        "orchestrator run",
        "kill",
        "orchestrator runs list",
        "orchestrator runs show",
        "cat",
        "orchestrator runs approve",
        "orchestrator runs resume",
        "cat",
        "orchestrator runs approve",
        "orchestrator runs resume",
        "cat",
    ]
    paid = transcript.split("$ cat payments.txt\n")[1:]
    assert [part.splitlines()[0] for part in paid] == [
        "cat: payments.txt: No such file or directory",
        "invoice 17: 120 EUR",
        "invoice 17: 120 EUR",
    ]
    assert transcript.count("tool pay: ok") == 1
    assert "\x1b" not in transcript


def test_no_line_names_a_place_of_this_machine(transcript: str) -> None:
    assert str(ROOT) not in transcript
    assert "/tmp" not in transcript  # noqa: S108


def test_make_runs_the_demonstration() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "demo-approval"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "-m orchestrator.examples.approval_demo" in done.stdout


PLAN = "orchestrator.examples.plan_demo"


@pytest.fixture(scope="module")
def plan_transcript(tmp_path_factory: pytest.TempPathFactory) -> str:
    # A busy machine gets longer than a person to end a process before it changes a file.
    change = "demo._PACE = ('--pace', '6')"
    return shown_on_a_terminal(PLAN, tmp_path_factory.mktemp("elsewhere"), change)


def test_the_readme_shows_what_the_demonstration_of_a_plan_prints(plan_transcript: str) -> None:
    assert normal(in_guide("approval", "demo-plan")) == normal(plan_transcript)


def test_the_folder_is_in_the_end_what_it_was_before(plan_transcript: str) -> None:
    before, changed, after = re.findall(
        r"^# the folder: (\d+ files), sha256 ([0-9a-f]{64})$", plan_transcript, re.MULTILINE
    )
    assert before == after
    assert changed != before


def test_the_story_has_a_refusal_a_yes_a_kill_a_recovery_a_pause_and_a_way_back(plan_transcript: str) -> None:
    steps = re.findall(r"^(?:\$ (kill|orchestrator approval \w+)|(\^C))", plan_transcript, re.MULTILINE)
    assert ["".join(step) for step in steps] == [
        "orchestrator approval submit",
        "orchestrator approval diff",
        "orchestrator approval execute",
        "orchestrator approval approve",
        "orchestrator approval execute",
        "kill",
        "orchestrator approval status",
        "orchestrator approval resume",
        "^C",
        "orchestrator approval cancel",
    ]
    told = [
        "state: AwaitingApproval",
        "-green tea,3",
        "refused (gate plan",
        "step 3 of 5  edit README.md …",
        "recovered: Executing was interrupted, now Paused",
        "complete and kept: 2 steps (1, 2)",
        "step 3 of 5  edit README.md: done",
        "pausing after the step that is being made",
        "state: Paused",
        "state: Idle",
    ]
    place = 0
    for one in told:  # each after the one before
        place = plan_transcript.index(one, place)
    assert "step 5 of 5" not in plan_transcript
    assert "\x1b" not in plan_transcript


def test_no_line_about_a_plan_names_a_place_of_this_machine(plan_transcript: str) -> None:
    assert str(ROOT) not in plan_transcript
    assert "/tmp" not in plan_transcript  # noqa: S108


def test_make_runs_the_demonstration_of_a_plan() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "demo-plan"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"-m {PLAN}" in done.stdout

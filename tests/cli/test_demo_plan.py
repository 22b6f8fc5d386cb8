"""`make demo-plan`: shown on a pseudo-terminal, and what the guide shows of it."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.cli.test_demo import ROOT, in_guide, normal, shown_on_a_terminal

pytestmark = pytest.mark.campaign

MODULE = "orchestrator.examples.plan_demo"


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> str:
    # A busy machine gets longer than a person to end a process before it changes a file.
    change = "demo._PACE = ('--pace', '6')"
    return shown_on_a_terminal(MODULE, tmp_path_factory.mktemp("elsewhere"), change)


def test_the_readme_shows_what_the_demonstration_prints(transcript: str) -> None:
    assert normal(in_guide("approval", "demo-plan")) == normal(transcript)


def test_the_folder_is_in_the_end_what_it_was_before(transcript: str) -> None:
    before, changed, after = re.findall(
        r"^# the folder: (\d+ files), sha256 ([0-9a-f]{64})$", transcript, re.MULTILINE
    )
    assert before == after
    assert changed != before


def test_the_story_has_a_refusal_a_yes_a_kill_a_recovery_a_pause_and_a_way_back(transcript: str) -> None:
    steps = re.findall(r"^(?:\$ (kill|orchestrator approval \w+)|(\^C))", transcript, re.MULTILINE)
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
        place = transcript.index(one, place)
    assert "step 5 of 5" not in transcript
    assert "\x1b" not in transcript


def test_no_line_names_a_place_of_this_machine(transcript: str) -> None:
    assert str(ROOT) not in transcript
    assert "/tmp" not in transcript  # noqa: S108


def test_make_runs_the_demonstration() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "demo-plan"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"-m {MODULE}" in done.stdout

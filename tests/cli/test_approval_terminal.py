"""`orchestrator approval` in front of a person: colour, a bar, Ctrl-C, a second terminal, a process that was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from shlex import quote

import pytest

from tests.cli.conftest import Cli, Done
from tests.cli.shop import Shop, shop
from tests.cli.test_stop import until
from tests.cli.test_terminal import HIDE, SHOW, Terminal

__all__ = ["shop"]

Start = Callable[..., subprocess.Popen[str]]

PACE = ("--pace", "60")
"""Longer than any test waits: what goes on does so because something was done."""


@pytest.fixture
def approved(cli: Cli, shop: Shop) -> Cli:
    """Commands on a shop whose plan is approved."""
    commands = (shop.submit, ("approval", "diff", *shop.here), ("approval", "approve", *shop.here))
    for command in commands:
        assert cli(*command).code == 0
    return lambda name, *more: cli("approval", name, *more, *shop.here)


def rest(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=60)
    return Done(process.returncode, out, err)


def before_step(number: int, start: Start, shop: Shop) -> subprocess.Popen[str]:
    """Execute the plan up to a step that waits for the pace: each step before it is made because a signal came."""
    command = "execute"
    for step in range(1, number):
        process = start("approval", command, *PACE, *shop.here)
        until(process, f"step {step} of 5")
        process.send_signal(signal.SIGINT)
        assert rest(process).code == 3
        command = "resume"
    process = start("approval", command, *PACE, *shop.here)
    until(process, f"step {number} of 5")
    return process


# ---- colour ----


def test_what_is_added_is_green_and_what_is_removed_is_red_on_a_terminal(
    cli: Cli, start: Start, shop: Shop
) -> None:
    cli(*shop.submit)
    terminal = Terminal(start, "approval", "diff", *shop.here)
    assert terminal.end() == (0, "")
    assert "\x1b[31m-green tea,3\x1b[0m" in terminal.raw
    assert "\x1b[32m+green tea,4\x1b[0m" in terminal.raw
    assert "\x1b[36m@@ -1,3 +1,4 @@\x1b[0m" in terminal.raw
    assert "\x1b[1m--- a/prices.csv\x1b[0m" in terminal.raw
    assert terminal.text.replace("\r", "") == cli("approval", "diff", *shop.here).out


def test_who_wants_no_colour_gets_none(
    cli: Cli, start: Start, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli(*shop.submit)
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal(start, "approval", "diff", *shop.here)
    assert terminal.end() == (0, "")
    assert "\x1b[3" not in terminal.raw
    assert "+green tea,4" in terminal.raw


# ---- the steps ----


@pytest.mark.canary
def test_the_steps_are_a_bar_that_moves(approved: Cli, start: Start, shop: Shop) -> None:
    terminal = Terminal(start, "approval", "execute", *shop.here)
    assert terminal.end() == (0, "")
    assert "━" in terminal.text
    assert "5/5" in terminal.text
    assert re.search(r"step 4 of 5  delete prices.txt: done, \d+\.\d+ s", terminal.text)
    assert terminal.raw.index(HIDE) < terminal.raw.rindex(SHOW)
    assert "state: Idle" in terminal.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_pauses_after_the_step_that_is_made(
    approved: Cli, start: Start, shop: Shop, number: int
) -> None:
    process = start("approval", "execute", *PACE, *shop.here)
    until(process, "step 1 of 5")
    process.send_signal(number)
    done = rest(process)
    assert done.code == 3
    assert "pausing after the step that is being made" in done.err
    assert "Traceback" not in done.err
    assert "step 1 of 5  create docs/prices.md: done" in done.out
    assert "step 2 of 5" not in done.out
    assert "state: Paused" in done.out
    assert (shop.folder / "docs/prices.md").is_file()
    assert approved("status").code == 3
    assert approved("resume").code == 0
    assert (shop.folder / "CHANGES.md").is_file()


def test_a_signal_on_a_terminal_leaves_it_tidy(approved: Cli, start: Start, shop: Shop) -> None:
    terminal = Terminal(start, "approval", "execute", *PACE, *shop.here)
    terminal.until("0/5")
    terminal.process.send_signal(signal.SIGINT)
    code, err = terminal.end()
    assert (code, err) == (3, "")
    assert "pausing after the step that is being made" in terminal.text, "above the bar"
    assert terminal.raw.rindex(SHOW) > terminal.raw.rindex(HIDE)


def test_a_second_signal_ends_it_at_once_and_the_next_start_recovers(
    approved: Cli, start: Start, shop: Shop
) -> None:
    process = start("approval", "execute", *PACE, *shop.here)
    until(process, "step 1 of 5")
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
    rest(process)
    found = approved("status")
    assert "Traceback" not in found.err
    assert found.code == 3
    assert "state: Paused" in found.out
    assert approved("cancel").code == 0
    assert shop.tree() == shop.before


def test_a_reader_that_goes_away_pauses_it(approved: Cli, start: Start, shop: Shop) -> None:
    process = start("approval", "execute", "--pace", "2", *shop.here)
    until(process, "step 1 of 5")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in (process.stderr.read() if process.stderr else "")
    assert "state: Paused" in approved("status").out


SLOW = """
import asyncio
from pathlib import Path

HERE = Path(__file__).parent


async def slow(request):
    (HERE / "asked").write_text("asked")  # somebody waits at its other end
    while not (HERE / "answer").exists():
        await asyncio.sleep(0.01)
    return '{"intents": [{"kind": "AddFeature", "summary": "A note", "confidence": 0.99}]}'
"""


def test_a_signal_while_the_planner_is_asked_cancels_after_its_answer(
    start: Start, shop: Shop, process: Cli
) -> None:
    home = shop.folder.parent
    (home / "slow.py").write_text(SLOW)
    os.mkfifo(home / "asked")
    asking = start("approval", "submit", "A note.", "--model", "python:slow:slow", *shop.here)
    assert (home / "asked").read_text() == "asked"
    asking.send_signal(signal.SIGINT)
    assert asking.stderr is not None
    assert "cancelling after the answer that is being made" in asking.stderr.readline()
    (home / "answer").touch()
    done = rest(asking)
    assert (done.code, done.err) == (6, "")
    assert "state: Idle" in done.out
    assert "plan:" not in done.out
    assert shop.tree() == shop.before


# ---- a crash ----


@pytest.mark.canary
def test_after_a_kill_the_next_start_says_what_was_recovered_and_what_can_be_done(
    approved: Cli, start: Start, shop: Shop
) -> None:
    process = before_step(3, start, shop)
    process.kill()
    rest(process)
    found = approved("status")
    assert found.code == 3
    assert "recovered: Executing was interrupted, now Paused" in found.out
    assert "complete and kept: 2 steps (1, 2)" in found.out
    for command in ("resume", "cancel"):
        assert f"orchestrator approval {command} --project {quote(str(shop.folder))}" in found.out
    assert shop.read("prices.csv").endswith("white tea,5\n")
    assert shop.read("README.md").endswith("prices.txt, in euros.\n")
    again = json.loads(approved("status", "--json").out)
    assert again["recovered"] is None
    assert again["recovery"]["kept"] == ["1", "2"]
    assert approved("resume").code == 0
    assert not (shop.folder / "prices.txt").exists()


def test_whatever_command_comes_first_after_a_kill_says_what_was_recovered(
    approved: Cli, start: Start, shop: Shop
) -> None:
    process = before_step(2, start, shop)
    process.kill()
    rest(process)
    done = approved("cancel")
    assert done.code == 0
    assert done.out.index("recovered: Executing was interrupted") < done.out.index("state: Idle")
    assert "undone: docs/prices.md" in done.out
    assert shop.tree() == shop.before


def test_a_file_that_somebody_changed_blocks_the_resume_and_is_kept_by_the_cancel(
    approved: Cli, start: Start, shop: Shop
) -> None:
    process = start("approval", "execute", *PACE, *shop.here)
    until(process, "step 1 of 5")
    process.send_signal(signal.SIGINT)
    assert rest(process).code == 3
    (shop.folder / "README.md").write_text("mine\n")
    refused = approved("resume")
    assert refused.code == 2
    assert "gate drift" in refused.err
    assert "README.md" in refused.err
    assert "next: orchestrator approval cancel" in refused.err
    found = approved("status").out
    assert "state: Paused" in found
    assert "conflict: README.md: " in found
    assert approved("cancel").code == 0
    assert shop.read("README.md") == "mine\n"
    assert not (shop.folder / "docs").exists()


def test_a_file_of_ours_that_somebody_changed_is_kept_and_named_by_the_cancel(
    approved: Cli, start: Start, shop: Shop
) -> None:
    process = start("approval", "execute", *PACE, *shop.here)
    until(process, "step 1 of 5")
    process.send_signal(signal.SIGINT)
    assert rest(process).code == 3
    (shop.folder / "docs/prices.md").write_text("mine\n")
    done = approved("cancel")
    assert done.code == 1
    assert "conflict: docs/prices.md" in done.out
    assert "state: Failed" in done.out
    assert shop.read("docs/prices.md") == "mine\n"
    assert approved("acknowledge").code == 0


def test_a_command_that_may_have_run_is_run_again_only_on_a_persons_word(
    cli: Cli, start: Start, shop: Shop
) -> None:
    waits = "import pathlib, time\nprint('began', file=open('began', 'a'))\n"
    waits += "if not pathlib.Path('go').exists(): pathlib.Path('../begun').write_text('begun')\n"
    waits += "while not pathlib.Path('go').exists(): time.sleep(0.01)"
    step = {"id": "build", "kind": "run", "argv": ["python3", "-c", waits]}
    shop.says({"goal": "Build.", "steps": [step]})
    for command in (shop.submit, ("approval", "diff", *shop.here), ("approval", "approve", *shop.here)):
        assert cli(*command).code == 0
    os.mkfifo(shop.folder.parent / "begun")
    process = start("approval", "execute", *shop.here)
    assert (shop.folder.parent / "begun").read_text() == "begun"
    began = shop.folder / "began"
    process.kill()
    rest(process)
    (shop.folder / "go").touch()
    found = cli("approval", "status", *shop.here)
    assert f"orchestrator approval resume --again --project {quote(str(shop.folder))}" in found.out
    refused = cli("approval", "resume", *shop.here)
    assert refused.code == 2
    assert "ST-006" in refused.err
    assert began.read_text() == "began\n"
    assert cli("approval", "resume", "--again", *shop.here).code == 0
    assert began.read_text() == "began\nbegan\n"


# ---- another terminal ----


def test_another_terminal_pauses_what_is_carried_out_here(approved: Cli, start: Start, shop: Shop) -> None:
    process = start("approval", "execute", "--pace", "2", *shop.here)
    until(process, "step 1 of 5")
    asked = approved("pause")
    assert asked.code == 0
    assert "sent the request to" in asked.err
    done = rest(process)
    assert done.code == 3
    assert "state: Paused" in done.out
    assert "step 5 of 5" not in done.out


def test_another_terminal_cancels_what_is_carried_out_here_and_everything_is_back(
    approved: Cli, start: Start, shop: Shop
) -> None:
    process = start("approval", "execute", "--pace", "2", *shop.here)
    until(process, "step 2 of 5")
    assert approved("cancel", "--why", "wrong folder").code == 0
    done = rest(process)
    assert done.code == 6
    assert "state: Idle" in done.out
    assert shop.tree() == shop.before


def test_another_terminal_sees_what_goes_on_and_can_do_nothing_else(
    approved: Cli, start: Start, shop: Shop
) -> None:
    process = start("approval", "execute", *PACE, *shop.here)
    until(process, "step 1 of 5")
    found = approved("status")
    assert found.code == 0
    assert "state: Executing" in found.out
    assert "owner: " in found.out
    assert "recovered" not in found.out
    assert "+green tea,4" in approved("diff").out
    for command in (("execute",), ("resume",), ("approve",), ("submit", "more", "--plan", str(shop.plan))):
        refused = approved(*command)
        assert refused.code == 2
        assert "refused (gate state)" in refused.err
        assert f"next: orchestrator approval status --project {quote(str(shop.folder))}" in refused.err
    os.kill(process.pid, signal.SIGINT)
    assert rest(process).code == 3

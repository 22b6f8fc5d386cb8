"""`orchestrator approval`: from what is wanted to files that are changed, and back, each command by itself."""

from __future__ import annotations

import json
from shlex import quote
from typing import Any

import pytest

from tests.cli.conftest import Cli, Done
from tests.cli.shop import OURS, STEPS, Shop, one_change, shop

__all__ = ["shop"]


def lines(done: Done) -> list[str]:
    return done.out.splitlines()


def data(done: Done) -> dict[str, Any]:
    assert len(done.out.splitlines()) == 1, done
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.fixture
def approval(cli: Cli, shop: Shop) -> Cli:
    """Run a command of the group on the shop."""
    return lambda name, *more: cli("approval", name, *more, *shop.here)


def test_a_submitted_plan_waits_and_nothing_but_ours_is_written(cli: Cli, shop: Shop) -> None:
    done = cli(*shop.submit)
    assert (done.code, done.err) == (0, "")
    assert lines(done)[0] == "state: AwaitingApproval"
    assert any("version 1, pending, expires in 30m" in line for line in lines(done))
    assert [line.split()[0] for line in lines(done) if line.startswith("  ")][:5] == list(STEPS)
    assert f"orchestrator approval approve --project {quote(str(shop.folder))}" in done.out
    assert shop.tree() == shop.before
    assert (shop.folder / OURS).stat().st_mode & 0o077 == 0


def test_a_plan_is_shown_approved_and_carried_out_step_by_step(cli: Cli, approval: Cli, shop: Shop) -> None:
    assert cli(*shop.submit).code == 0
    shown = approval("diff")
    assert (shown.code, shown.err) == (0, "")
    assert "-green tea,3\n+green tea,4\n" in shown.out
    assert "--- a/prices.txt\n+++ /dev/null\n" in shown.out
    assert "--- /dev/null\n+++ b/docs/prices.md\n" in shown.out
    assert "\x1b" not in shown.out
    approved = approval("approve", "--by", "ann")
    assert (approved.code, approved.err) == (0, "")
    assert shop.tree() == shop.before, "approving does not begin"
    ended = approval("execute")
    assert (ended.code, ended.err) == (0, "")
    begun = [line for line in lines(ended) if line.startswith("  step") and line.endswith("…")]
    assert [line.split()[1] for line in begun] == list(STEPS)
    assert "state: Idle" in ended.out
    assert shop.read("prices.csv") == "item,euros\ngreen tea,4\nblack tea,3\nwhite tea,5\n"
    assert not (shop.folder / "prices.txt").exists()
    assert (shop.folder / "docs/prices.md").is_file()


def test_approving_with_execute_carries_out_at_once(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    approval("diff")
    done = approval("approve", "--execute")
    assert (done.code, done.err) == (0, "")
    assert "step 5 of 5  create CHANGES.md: done" in done.out
    assert shop.tree() != shop.before


def test_what_nobody_has_looked_at_cannot_be_approved(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    approval("show")
    done = approval("approve")
    assert done.code == 2
    assert "gate preview_acknowledged" in done.err
    assert f"next: orchestrator approval diff --project {quote(str(shop.folder))}" in done.err
    approval("diff")
    assert approval("approve").code == 0


def test_a_digest_binds_the_yes_to_the_plan_that_was_seen(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    digest = data(approval("diff", "--json"))["digest"]
    assert approval("approve", "--digest", "0" * 64).code == 2
    assert approval("approve", "--digest", digest).code == 0


def test_a_rejected_plan_is_gone_and_nothing_was_written(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    done = approval("reject", "--why", "not now")
    assert done.code == 0
    assert "state: Idle" in done.out
    assert approval("execute").code == 2
    assert shop.tree() == shop.before


def test_a_cancelled_plan_that_waits_is_gone_too(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    done = approval("cancel")
    assert (done.code, shop.tree()) == (0, shop.before)
    assert "state: Idle" in done.out


def test_other_words_make_another_version_of_the_plan(cli: Cli, approval: Cli, shop: Shop) -> None:
    shop.says(one_change("a.txt"))
    cli(*shop.submit)
    shop.says(one_change("b.txt"))
    done = approval("changes", "call it b")
    assert done.code == 0
    assert "version 2, pending" in done.out
    assert "+++ b/b.txt" in approval("diff").out
    assert "+++ b/a.txt" in approval("diff", "--version", "1").out
    assert approval("diff", "--version", "7").code == 2


def test_some_steps_are_a_plan_of_their_own(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    approval("diff")
    derived = data(approval("approve", "--steps", "2,5", "--json"))
    assert (derived["state"], derived["plan_status"]) == ("AwaitingApproval", "approved")
    assert [step["id"] for step in derived["plan"]["steps"]] == ["2", "5"]
    assert derived["plan"]["version"] == 1
    assert derived["plan"]["derived_from"]
    assert approval("execute").code == 0
    assert shop.read("prices.txt") == "green tea: 3\nblack tea: 2\n"
    assert (shop.folder / "CHANGES.md").is_file()


def test_steps_that_the_chosen_ones_need_wait_for_a_yes_of_their_own(
    cli: Cli, approval: Cli, shop: Shop
) -> None:
    cli(*shop.submit)
    approval("diff")
    derived = data(approval("approve", "--steps", "4", "--json"))
    assert [step["id"] for step in derived["plan"]["steps"]] == ["3", "4"]
    assert (derived["state"], derived["plan_status"]) == ("AwaitingApproval", "pending")
    assert approval("approve").code == 2
    approval("diff")
    assert approval("approve").code == 0
    assert shop.tree() == shop.before


def test_the_parts_of_a_request_are_one_plan_each_and_each_waits_for_its_own_yes(
    cli: Cli, approval: Cli, shop: Shop
) -> None:
    shop.says({"plans": [{**one_change("a.txt"), "goal": "One."}, {**one_change("b.txt"), "goal": "Two."}]})
    assert "plan-1 version 1, pending" in cli(*shop.submit).out
    approval("diff")
    first = approval("approve", "--execute")
    assert first.code == 0
    assert "question: Continue with the next part: Two." in first.out
    assert not (shop.folder / "b.txt").exists()
    assert "pending" in approval("submit", "--confirm").out
    approval("diff")
    second = approval("approve", "--execute")
    assert second.code == 0
    assert "question" not in second.out
    assert shop.read("a.txt") == shop.read("b.txt") == "new\n"


def test_a_plan_that_waited_for_too_long_cannot_be_approved(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit, "--limit", "expiry_seconds=0.001")
    done = approval("approve")
    assert done.code == 2
    assert "the plan expired: it waited for too long" in done.out
    assert f"next: orchestrator approval submit --project {quote(str(shop.folder))} TEXT" in done.err
    assert data(approval("status", "--json"))["plan_status"] == "expired"
    assert shop.tree() == shop.before


def test_limits_of_a_request_are_kept_for_the_commands_after_it(cli: Cli, approval: Cli, shop: Shop) -> None:
    done = cli(*shop.submit, "--limit", "steps=3")
    assert done.code == 1
    assert "VAL-007" in done.out
    approval("acknowledge")
    assert cli(*shop.submit, "--limit", "steps=5", "--limit", "diff_lines=0").code == 0
    approval("diff")
    assert approval("approve").code == 0, "other limits would be another configuration"
    assert approval("execute").code == 0


def test_another_request_with_other_limits_takes_no_plan_away_that_waits(
    cli: Cli, approval: Cli, shop: Shop
) -> None:
    cli(*shop.submit, "--limit", "diff_lines=400")
    approval("diff")
    approval("approve")
    for more in ((), ("--limit", "diff_lines=300")):
        done = cli(*shop.submit, *more)
        assert done.code == 2
        assert "submit is not possible in AwaitingApproval" in done.err
    found = data(approval("status", "--json"))
    assert (found["state"], found["plan_status"]) == ("AwaitingApproval", "approved")
    assert approval("execute").code == 0, "the yes still counts"


def test_a_request_after_a_plan_that_expired_has_its_own_limits(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit, "--limit", "expiry_seconds=0.001")
    done = cli(*shop.submit, "--limit", "steps=3")
    assert done.code == 1
    assert "the plan expired: it waited for too long" in done.out
    assert "VAL-007" in done.out


def test_an_edit_from_outside_before_the_execution_is_named_and_kept(
    cli: Cli, approval: Cli, shop: Shop
) -> None:
    cli(*shop.submit)
    approval("diff")
    approval("approve")
    (shop.folder / "README.md").write_text("mine\n")
    done = approval("execute")
    assert done.code == 2
    assert "recovered: AwaitingApproval, now Idle" in done.out
    assert "README.md" in done.out
    assert shop.read("README.md") == "mine\n"
    assert not (shop.folder / "docs").exists()


def test_every_command_can_print_data(cli: Cli, approval: Cli, shop: Shop) -> None:
    waits = data(cli(*shop.submit, "--json"))
    assert (waits["state"], waits["plan_status"], len(waits["steps"])) == ("AwaitingApproval", "pending", 5)
    assert {"diff", "show", "reject", "changes"} <= set(waits["actions"])
    assert data(approval("status", "--json"))["plan"]["digest"] == waits["plan"]["digest"]
    assert data(approval("show", "--json"))["plan"]["goal"] == "Keep the prices in one file, and say so."
    found = data(approval("diff", "--json"))
    assert [one["path"] for one in found["files"]] == [
        "docs/prices.md",
        "prices.csv",
        "README.md",
        "prices.txt",
        "CHANGES.md",
    ]
    assert (found["files"][1]["added"], found["files"][1]["removed"]) == (2, 1)
    assert data(approval("approve", "--json"))["plan_status"] == "approved"
    ended = data(approval("execute", "--json"))
    assert (ended["state"], ended["plan_status"]) == ("Idle", "completed")
    assert {one["status"] for one in ended["steps"]} == {"done"}
    refused = approval("execute", "--json")
    assert refused.code == 2
    assert data(refused)["refused"]["gate"] == "state"


def test_a_command_is_shown_as_one_that_cannot_be_undone_and_runs_without_a_shell(
    cli: Cli, approval: Cli, shop: Shop
) -> None:
    step = {"id": "1", "kind": "run", "title": "Look", "argv": ["touch", "made; touch not"]}
    shop.says({"goal": "Look.", "steps": [step]})
    cli(*shop.submit)
    shown = approval("diff")
    assert "$ touch 'made; touch not'" in shown.out
    assert "cannot be undone" in shown.out
    assert "1 command that cannot be undone" in shown.out
    approval("approve")
    assert approval("execute").code == 0
    assert [one.name for one in shop.folder.iterdir() if one.name.startswith("made")] == ["made; touch not"]


def test_a_step_that_fails_shows_why_and_keeps_it_nowhere_and_the_rest_can_be_taken_back(
    cli: Cli, approval: Cli, shop: Shop
) -> None:
    document = one_change()
    broken = "print('the build is broken because of the moon'); raise SystemExit(3)"
    document["steps"].append({"id": "2", "kind": "run", "argv": ["python3", "-c", broken]})
    shop.says(document)
    cli(*shop.submit)
    approval("diff")
    done = approval("approve", "--execute")
    assert done.code == 1
    assert "    | the build is broken because of the moon\n" in done.out
    assert "error: BLD-" in done.out
    assert [one["status"] for one in data(approval("status", "--json"))["steps"]] == ["done", "failed"]
    said = b"moon\n"
    assert not any(said in file.read_bytes() for file in (shop.folder / OURS).rglob("*") if file.is_file())
    assert approval("rollback").code == 1, "the state stays Failed until it is acknowledged"
    assert shop.tree() == shop.before
    assert approval("acknowledge").code == 0


def test_a_plan_that_hides_something_is_shown_with_a_warning(cli: Cli, approval: Cli, shop: Shop) -> None:
    shop.says(one_change("notes.txt", "if admin:\u202e #\x1b[2K\n"))
    cli(*shop.submit)
    shown = approval("diff")
    assert r"+if admin:\u202e #\x1b[2K" in shown.out
    assert "2 characters that a terminal hides or obeys" in shown.out
    assert "\x1b" not in shown.out
    assert data(approval("diff", "--json"))["files"][0]["hidden_characters"] == 2


@pytest.mark.parametrize("command", ["resume", "cancel", "pause", "approve", "rollback"])
def test_the_commands_for_other_runs_name_the_door_of_this_one(
    cli: Cli, approval: Cli, shop: Shop, command: str
) -> None:
    cli(*shop.submit)
    journal = ("--journal", str(shop.folder / OURS / "journal.db"))
    done = cli("runs", command, "approval-0001", *journal)
    assert done.code == 2
    assert f"`orchestrator approval status --project {quote(str(shop.folder))}`" in done.err
    shown = cli("runs", "show", "approval-0001", *journal)
    assert shown.code == 0
    assert f"orchestrator approval status --project {quote(str(shop.folder))}" in shown.out
    assert data(approval("status", "--json"))["state"] == "AwaitingApproval"
    assert cli("doctor", *journal).code == 0

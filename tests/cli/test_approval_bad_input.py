"""`orchestrator approval` with what is wrong: one sentence, the way out, nothing changed, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import pytest

from tests.cli.conftest import Cli, Done
from tests.cli.shop import OURS, Shop, one_change, shop

__all__ = ["shop"]

Sentence = Callable[[Done], str]


@pytest.fixture
def approval(cli: Cli, shop: Shop) -> Cli:
    return lambda name, *more: cli("approval", name, *more, *shop.here)


def untouched(shop: Shop) -> bool:
    return shop.tree() == shop.before and not (shop.folder / OURS).exists()


SAID = {
    "nobody who makes a plan": (("submit", "do it"), "--plan FILE or --model SPEC"),
    "two who make a plan": (("submit", "do it", "--plan", "plan.toml", "--model", "openai:x"), "give one"),
    "no text": (("submit", "--plan", "plan.toml"), "TEXT is empty"),
    "a text of blanks": (("submit", " \n ", "--plan", "plan.toml"), "TEXT is empty"),
    "a text that is none": (("submit", "\udcff", "--plan", "plan.toml"), "is no text"),
    "a text and a yes": (("submit", "do it", "--confirm"), "without TEXT"),
    "a plan that is not there": (("submit", "do it", "--plan", "none.toml"), "no such file"),
    "a plan that is a folder": (("submit", "do it", "--plan", "."), "no regular file"),
    "a model that is none": (("submit", "do it", "--model", "crystal:ball"), "unknown model"),
    "a limit that is none": (
        ("submit", "do it", "--plan", "plan.toml", "--limit", "moons=2"),
        "unknown limit",
    ),
    "a limit below 0": (("submit", "do it", "--plan", "plan.toml", "--limit", "steps=-1"), "steps"),
    "a limit without a value": (("submit", "do it", "--plan", "plan.toml", "--limit", "steps"), "name=value"),
    "thresholds the wrong way round": (
        ("submit", "do it", "--plan", "plan.toml", "--limit", "confirm=0.9"),
        "confirm",
    ),
    "no words for changes": (("changes", " "), "TEXT is empty"),
    "a pace below 0": (("execute", "--pace", "-1"), "--pace -1"),
    "a pace that never ends": (("execute", "--pace", "inf"), "--pace inf"),
    "a pace that is no number": (("resume", "--pace", "nan"), "--pace nan"),
    "a pace that is a word": (("execute", "--pace", "slow"), "'--pace'"),
    "steps with a hole": (("approve", "--steps", "1,,2"), "1,3,4"),
    "no steps": (("approve", "--steps", ""), "1,3,4"),
    "a step twice": (("approve", "--steps", "1,1"), "twice"),
    "a pace for an approval": (("approve", "--execute", "--pace", "99"), "--pace 99"),
}


@pytest.mark.parametrize(("arguments", "expected"), SAID.values(), ids=SAID)
def test_bad_input_is_one_sentence_and_nothing_is_begun(
    cli: Cli, shop: Shop, one_sentence: Sentence, arguments: tuple[str, ...], expected: str
) -> None:
    done = cli("approval", *arguments, *shop.here)
    assert expected in one_sentence(done)
    assert done.code == 2
    assert untouched(shop)


@pytest.mark.parametrize("place", ["nowhere", "plan.toml"])
@pytest.mark.parametrize("command", ["status", "show", "execute", "cancel"])
def test_a_project_that_is_no_folder_is_refused(
    cli: Cli, shop: Shop, one_sentence: Sentence, command: str, place: str
) -> None:
    done = cli("approval", command, "--project", place)
    assert "there is no such folder" in one_sentence(done)
    assert done.code == 2


NEEDS_A_PLAN = (
    ("show",),
    ("diff",),
    ("approve",),
    ("approve", "--steps", "1"),
    ("reject",),
    ("execute",),
    ("pause",),
    ("resume",),
    ("cancel",),
    ("acknowledge",),
    ("rollback",),
    ("submit", "--confirm", "--plan", "plan.toml"),
    ("changes", "more", "--plan", "plan.toml"),
    ("retry", "--plan", "plan.toml"),
)


@pytest.mark.parametrize("arguments", NEEDS_A_PLAN, ids=" ".join)
@pytest.mark.parametrize("json_", [False, True], ids=["words", "json"])
def test_on_an_idle_project_there_is_nothing_to_do_and_that_is_said_with_the_way_on(
    cli: Cli, shop: Shop, arguments: tuple[str, ...], json_: bool
) -> None:
    done = cli("approval", *arguments, *shop.here, *(("--json",) if json_ else ()))
    assert done.code == 2
    first, *more = done.err.splitlines()
    assert first.startswith("orchestrator: refused (gate "), done
    assert "Traceback" not in done.err
    assert any("orchestrator approval submit" in line for line in more), done
    assert untouched(shop)
    if json_:
        refused = json.loads(done.out)["refused"]
        assert refused["gate"]
        assert refused["reason"]
        assert refused["next_steps"]
        assert refused["retryable_now"] is False
    else:
        assert done.out == ""


def test_the_status_of_a_project_that_was_never_begun_is_idle_and_makes_nothing(
    approval: Cli, shop: Shop
) -> None:
    done = approval("status")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "state: Idle"
    assert "orchestrator approval submit" in done.out
    assert json.loads(approval("status", "--json").out)["actions"] == ["submit"]
    assert untouched(shop)


BROKEN: dict[str, tuple[Any, str]] = {
    "no plan at all": ("{", "VAL-002"),
    "another document": ({"steps": "all of them"}, "VAL-002"),
    "no step": ({"goal": "Nothing.", "steps": []}, "VAL-006"),
    "out of the project": (one_change("../outside.txt"), "SEC-"),
    "an absolute path": (one_change("/tmp/outside.txt"), "SEC-"),  # noqa: S108
    "a hidden folder": (one_change(".git/hooks/pre-commit"), "SEC-"),
    "our own folder": (one_change(".orchestrator/journal.db"), "SEC-"),
    "a file that is there": (one_change("README.md"), "FS-002"),
}


@pytest.mark.parametrize(("document", "code"), BROKEN.values(), ids=BROKEN)
def test_a_plan_that_cannot_be_is_refused_with_its_code_and_nothing_is_written(
    cli: Cli, approval: Cli, shop: Shop, document: Any, code: str
) -> None:
    if isinstance(document, str):
        shop.plan = shop.plan.with_suffix(".json")
        shop.plan.write_text(document)
    else:
        shop.says(document)
    done = cli(*shop.submit)
    assert done.code == 1
    assert "state: Failed" in done.out
    assert code in done.out
    assert shop.tree() == shop.before
    assert approval("execute").code == 2
    assert approval("acknowledge").code == 0
    assert "state: Idle" in approval("status").out


def test_an_error_is_acknowledged_only_after_it_was_shown(
    cli: Cli, approval: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.says(one_change("../outside.txt"))
    assert cli(*shop.submit).code == 1
    shown = approval("status", "--json")
    assert (shown.code, json.loads(shown.out)["error"]["shown"]) == (1, True)
    assert approval("acknowledge").code == 0
    assert approval("acknowledge").code == 2


def test_steps_that_the_plan_does_not_have_are_named(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    approval("diff")
    done = approval("approve", "--steps", "2,moon")
    assert done.code == 2
    assert "moon" in done.err
    assert "VAL-019" in done.err
    assert approval("status").out.startswith("state: AwaitingApproval")


def test_a_text_from_somebody_cannot_drive_the_terminal(cli: Cli, approval: Cli, shop: Shop) -> None:
    document = one_change()
    document["goal"] = "Fine.\x1b[2J\u202e"
    document["steps"][0]["title"] = "\x1b]0;owned\x07"
    shop.says(document)
    submitted = cli("approval", "submit", "do\x1b[31m it", "--plan", str(shop.plan), *shop.here)
    assert submitted.code == 1, "words that hide something are no plan"
    for done in (submitted, approval("status"), approval("diff"), approval("acknowledge")):
        assert "\x1b" not in done.out + done.err
        assert "\x07" not in done.out + done.err


def test_a_project_that_cannot_be_written_to_is_one_sentence(cli: Cli, shop: Shop) -> None:
    if os.geteuid() == 0:
        (shop.folder / OURS).write_text("a file, where our folder goes\n")
    else:
        shop.folder.chmod(0o500)
    try:
        done = cli(*shop.submit)
    finally:
        shop.folder.chmod(0o700)
    assert done.code in {1, 2}
    assert done.err.startswith("orchestrator: ")
    assert "unexpected" not in done.err
    assert "Traceback" not in done.err


@pytest.fixture
def sealed(tmp_path: Path, shop: Shop, absent: Callable[[str], NoReturn]) -> Iterator[tuple[str, str]]:
    """The option that names the project where nothing can be written; needs root."""
    if os.geteuid() != 0:
        absent("mounting needs root")
    point = tmp_path / "sealed"
    point.mkdir()
    for options in (["--bind", str(shop.folder)], ["-o", "remount,bind,ro"]):
        done = subprocess.run(["mount", *options, point], capture_output=True, text=True, check=False)
        if done.returncode:
            absent(f"mount is refused: {done.stderr.strip()}")
    yield "--project", str(point)
    subprocess.run(["umount", "--lazy", point], check=True)


def test_a_project_on_a_read_only_disk_can_be_looked_at_and_that_is_all(
    cli: Cli, shop: Shop, sealed: tuple[str, str]
) -> None:
    assert cli(*shop.submit).code == 0
    for look, line in (("status", "state: AwaitingApproval"), ("show", "goal: "), ("diff", "+++ b/")):
        plain = cli("approval", look, *shop.here)
        done = cli("approval", look, *sealed)
        assert (done.code, done.out) == (plain.code, plain.out.replace(str(shop.folder), sealed[1]))
        assert line in done.out
        assert "read-only" in done.err or "cannot be opened for writing" in done.err
        assert len(done.err.splitlines()) == 1
        assert json.loads(cli("approval", look, "--json", *sealed).out)
    for act in ("approve", "execute", "reject", "cancel", "pause", "submit"):
        done = cli("approval", act, *(["x", "--plan", str(shop.plan)] if act == "submit" else []), *sealed)
        assert (done.out, len(done.err.splitlines())) == ("", 1), (
            "nothing was done, and that is all that is said"
        )
        assert done.code in {1, 2}


def test_a_state_that_was_tampered_with_is_told_and_never_used(cli: Cli, approval: Cli, shop: Shop) -> None:
    cli(*shop.submit)
    state = shop.folder / OURS / "state.json"
    document = json.loads(state.read_text())
    document["state"] = "Executing"
    state.write_text(json.dumps(document))
    done = approval("status")
    assert "Traceback" not in done.err
    assert done.code == 1
    assert "ST-002" in done.out + done.err
    assert "state: Executing" not in done.out
    assert approval("execute").code == 2
    assert shop.tree() == shop.before


def test_a_journal_that_cannot_be_read_is_set_aside_only_on_a_persons_word(
    cli: Cli, approval: Cli, shop: Shop
) -> None:
    cli(*shop.submit)
    file = shop.folder / OURS / "journal.db"
    with file.open("r+b") as journal:
        for page in range(4096, file.stat().st_size, 4096):  # all: SQLite chooses which has the records
            journal.seek(page)
            journal.write(b"garbage" * 20)
    found = approval("status")
    assert found.code == 1
    assert "damaged: the data in .orchestrator/ cannot be trusted, now Failed" in found.out
    assert f"orchestrator approval acknowledge --discard --project {quote(str(shop.folder))}" in found.out
    assert "move .orchestrator/ aside and start again" in found.out
    assert "keep every file as it is" not in found.out
    for command in ("diff", "execute", "acknowledge"):
        refused = approval(command)
        assert refused.code == 2
        assert refused.err.startswith("orchestrator: refused (gate ")
    done = approval("acknowledge", "--discard")
    assert done.code == 0
    assert "state: Idle" in done.out
    assert (shop.folder / OURS / "damaged-1" / "journal.db").is_file()
    assert shop.tree() == shop.before
    assert cli(*shop.submit).code == 0


@pytest.mark.parametrize("command", ["submit", "show", "diff", "approve", "execute", "resume", "status"])
def test_help_says_what_a_command_does(cli: Cli, command: str) -> None:
    done = cli("approval", command, "--help")
    assert done.code == 0
    assert "--project" in done.out
    assert "Exit codes" in done.out


def test_the_folder_of_the_command_is_the_project_where_none_is_named(
    cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.folder)
    done = cli("approval", "submit", "do it", "--plan", str(shop.plan))
    assert done.code == 0
    assert "\n  orchestrator approval diff " in done.out
    assert Path(shop.folder / OURS).is_dir()

"""`orchestrator init` and `orchestrator add`: bad input is one sentence, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.project.creation import create_project

Cli = Callable[..., Any]


@pytest.mark.parametrize("name", ["class", "../shop", "a/b", "json", "Shop"])
def test_a_name_that_cannot_be_used_makes_no_folder(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, name: str
) -> None:
    before = sorted(folder.parent.rglob("*"))
    done = cli("init", name)
    assert done.code == 2
    assert repr(name) in one_sentence(done)
    assert sorted(folder.parent.rglob("*")) == before


def test_a_folder_with_content_and_a_file_are_left_as_they_are(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "mine").write_text("mine")
    (folder / "desk").write_text("mine")
    (folder / "link").symlink_to(folder / "nowhere")
    assert "the folder shop is not empty" in one_sentence(cli("init", "shop"))
    assert "desk exists and is no folder" in one_sentence(cli("init", "desk"))
    assert "link exists and is no folder" in one_sentence(cli("init", "link"))
    assert sorted(path.name for path in folder.rglob("*")) == ["desk", "link", "mine", "models.py", "shop"]


def test_an_error_on_the_way_leaves_nothing(folder: Path) -> None:
    def fail(_: Path) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        create_project("shop", folder, fail)
    assert [path.name for path in folder.iterdir()] == ["models.py"]


def test_an_empty_folder_becomes_the_project(folder: Path) -> None:
    (folder / "shop").mkdir()
    assert create_project("shop", folder) == folder / "shop"
    assert (folder / "shop" / "shop" / "agent.py").exists()


def test_outside_of_a_project_nothing_is_added(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    for text in (
        None,
        "",
        "[tool.fsm-orchestrator]\npackage = '../x'\n",
        "[tool.fsm-orchestrator]\npackage = 1\n",
    ):
        if text is not None:
            (folder / "pyproject.toml").write_text(text)
        done = cli("add", "tool", "find_customer")
        assert done.code == 2
        assert "pyproject.toml" in one_sentence(done)


def test_a_part_is_added_and_its_files_are_printed(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_project("shop", folder)
    monkeypatch.chdir(folder / "shop")
    done = cli("add", "guard", "daily_refunds")
    assert (done.code, done.out.splitlines()[:2]) == (
        0,
        ["shop/guards/daily_refunds.py", "tests/test_daily_refunds.py"],
    )
    assert "there is no machine 'nope'; known: answer_loop" in one_sentence(
        cli("add", "state", "pack", "--machine", "nope")
    )
    assert "No such command 'door'" in one_sentence(cli("add", "door", "front"))

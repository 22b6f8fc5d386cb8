"""What is swapped between check and use, at every moment of a step: what lies outside is never reached."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from tests.runtime.approval.work_stage import Stage, project, refused, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


def to_link(root: Path) -> None:
    """The folder `src` becomes a link to a folder outside."""
    (root / "src").rename(root / "moved")
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "b.py").write_text("b = 1\n")
    (root / "src").symlink_to(outside)


def file_to_link(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "b.py").write_text("b = 1\n")
    (root / "src" / "b.py").unlink()
    (root / "src" / "b.py").symlink_to(outside / "b.py")


def to_pipe(root: Path) -> None:
    (root.parent / "outside").mkdir()
    (root / "src" / "b.py").unlink()
    os.mkfifo(root / "src" / "b.py")


def to_file(root: Path) -> None:
    (root.parent / "outside").mkdir()
    (root / "src").rename(root / "moved")
    (root / "src").write_text("a file")


def edited(root: Path) -> None:
    (root.parent / "outside").mkdir()
    (root / "src" / "b.py").write_text("b = 9\n")


def linked(root: Path) -> None:
    (root.parent / "outside").mkdir()
    (root.parent / "outside" / "b.py").hardlink_to(root / "src" / "b.py")


SWAPS = {
    "folder to link": to_link,
    "file to link": file_to_link,
    "pipe": to_pipe,
    "file": to_file,
    "edit": edited,
}
CODES = {"SEC-003", "SEC-007", "SEC-011", "FS-006", "FS-009", "ST-007"}
B = "@@ -1 +1 @@\n-b = 1\n+b = 2\n"
WORKS = {
    "edit": {"id": "1", "kind": "edit", "files": [{"path": "src/b.py", "diff": B}]},
    "delete": {"id": "1", "kind": "delete", "files": [{"path": "src/b.py"}]},
}
MOMENTS = ("at once", "intent", "temporary made", "written", "synced", "verified", "owned")
OF_A_DELETE = ("at once", "intent", "owned")


@pytest.mark.parametrize(
    ("kind", "moment"), [*product(("edit",), MOMENTS), *product(("delete",), OF_A_DELETE)]
)
@pytest.mark.parametrize("swap", SWAPS)
async def test_a_swap_between_check_and_use_never_reaches_what_is_outside(
    swap: str, kind: str, moment: str, root: Path
) -> None:
    swapped: list[str] = []

    def hook(name: str) -> None:
        if name == moment and not swapped:
            swapped.append(name)
            SWAPS[swap](root)

    stage = Stage(root, WORKS[kind])
    work = await stage.begin(hook=hook)
    if moment == "at once":
        hook(moment)
    error = await refused(work, stage.plan, "1")
    assert swapped
    assert {fault.code for fault in error.faults} <= CODES
    outside = tree(root.parent / "outside")
    assert {content for _, content in outside.values()} <= {b"b = 1\n"}
    assert not [name for name in outside if name.endswith(".tmp")]
    if swap == "edit":
        assert (root / "src" / "b.py").read_text() == "b = 9\n"
    assert work.done == ()


async def test_a_hard_link_made_after_the_plan_is_found_before_the_step(root: Path) -> None:
    stage = Stage(root, WORKS["edit"])
    work = await stage.begin()
    linked(root)
    assert (await refused(work, stage.plan, "1")).code == "SEC-008"
    assert (root.parent / "outside" / "b.py").read_text() == "b = 1\n"


async def test_a_file_that_appears_under_the_name_of_a_new_one_is_kept(root: Path) -> None:
    def hook(name: str) -> None:
        if name == "verified":
            (root / "n.py").write_text("theirs\n")

    stage = Stage(root, {"id": "1", "kind": "create", "files": [{"path": "n.py", "content": "mine = 1\n"}]})
    work = await stage.begin(hook=hook)
    error = await refused(work, stage.plan, "1")
    assert error.faults[0].code == "FS-006"
    assert (root / "n.py").read_text() == "theirs\n"

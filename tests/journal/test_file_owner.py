"""Owner and group of what is replaced and of what comes back: real ones, so these tests need root, as on CI."""

from __future__ import annotations

import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.files import atomic as files
from orchestrator.files.rollback import RollbackStack
from orchestrator.journal.memory import MemoryJournal

MEMBER, FOREIGN, USER, OTHER = 4001, 4002, 5001, 5002
"""Groups, and users: by number, nobody has to know them."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


def of(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def owned(path: Path, user: int, group: int, mode: int) -> Path:
    path.write_bytes(b"old")
    os.chown(path, user, group)
    path.chmod(mode)
    return path


def as_user(folder: Path, work: Callable[[], object]) -> None:
    """Do something as USER, who is a member of the groups USER and MEMBER, with a folder as the working directory."""
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            os.setgroups([MEMBER])
            os.setgid(USER)
            os.setuid(USER)
            work()
        except BaseException:  # noqa: BLE001  a forked child must never come back
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "see above"


def test_what_root_replaces_keeps_owner_group_and_every_bit(root: Path) -> None:
    path = owned(root / "file", OTHER, FOREIGN, 0o6750)
    files.atomic_write(path, b"new")
    assert (path.read_bytes(), of(path)) == (b"new", (OTHER, FOREIGN, 0o6750))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ((USER, MEMBER, 0o640), (USER, MEMBER, 0o640)),
        ((USER, MEMBER, 0o2750), (USER, MEMBER, 0o2750)),
        ((OTHER, MEMBER, 0o664), (USER, MEMBER, 0o664)),
        ((OTHER, MEMBER, 0o6775), (USER, MEMBER, 0o775)),
        ((USER, FOREIGN, 0o640), (USER, USER, 0o600)),
        ((OTHER, FOREIGN, 0o2774), (USER, USER, 0o744)),
    ],
    ids=[
        "own, a group of mine",
        "with set-id",
        "of a mate",
        "of a mate, set-id",
        "foreign group",
        "all foreign",
    ],
)
def test_what_a_user_replaces_keeps_the_group_where_that_may_be_and_gives_no_other_group_its_rights(
    root: Path, was: tuple[int, int, int], becomes: tuple[int, int, int]
) -> None:
    path = owned(root / "file", *was)
    as_user(root, lambda: files.atomic_write("file", b"new"))
    assert (path.read_bytes(), of(path)) == (b"new", becomes)


async def test_a_deleted_file_comes_back_with_its_owner_and_group_also_for_the_next_owner_of_the_run(
    root: Path,
) -> None:
    gone = owned(root / "gone", OTHER, FOREIGN, 0o640)
    edited = owned(root / "edited", USER, MEMBER, 0o604)
    journal = MemoryJournal()
    lease = await journal.create("run", "me", {"graph": "g", "fingerprint": "f", "at": 0.0})
    stack = RollbackStack(journal, lease, root)
    await stack.edit("edited", b"new")
    await stack.delete("gone")
    assert of(edited) == (USER, MEMBER, 0o604)
    lease = await journal.claim("run", "next", steal=True)
    stack = RollbackStack.recover(await journal.load("run"), journal, lease, root)
    assert [change.owner for change in stack.changes] == [(USER, MEMBER), (OTHER, FOREIGN)]
    assert (await stack.undo()).conflicts == ()
    assert (gone.read_bytes(), of(gone)) == (b"old", (OTHER, FOREIGN, 0o640))
    assert (edited.read_bytes(), of(edited)) == (b"old", (USER, MEMBER, 0o604))

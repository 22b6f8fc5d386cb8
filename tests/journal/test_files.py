"""Files are written whole or not at all: contents, modes, names, refusals, errors, system calls."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orchestrator.errors import Corrupt
from orchestrator.files import atomic as files
from orchestrator.files.path_safety import FileRefused, make_folder, remove_folder

ROOT = Path(__file__).resolve().parents[2]
LEFTOVER = ".{}.0123456789abcdef.tmp"
WRITE_STEPS = ("temporary made", "written", "synced", "verified", "renamed", "folder synced")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- what arrives ----


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)), b"line\r\n\0", b"7" * (3 << 20)], ids=len)
def test_every_content_arrives_and_its_digest_comes_back(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    assert files.atomic_write(path, content) == digest(content)
    assert path.read_bytes() == content
    assert files.read_digest(path) == digest(content)
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "name", ["ünïcode 文件", "-", ".hidden", "a\nb", "n" * 255, "文" * 85, "e\u0301", "x.tmp"]
)
def test_every_name_that_the_system_takes_can_be_written_and_swept(tmp_path: Path, name: str) -> None:
    files.atomic_write(tmp_path / name, b"old")
    left = files.stage(tmp_path / name, b"new")
    assert len(left.temporary.encode()) <= 255
    assert files.sweep(tmp_path, name=name) == [left.temporary]
    assert names(tmp_path) == [name]
    files.atomic_delete(tmp_path / name)
    assert names(tmp_path) == []


@pytest.mark.parametrize("bits", [0o644, 0o755, 0o600, 0o444, 0o400, 0o777])
def test_the_mode_of_the_file_that_is_replaced_stays(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(bits)
    files.atomic_write(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", bits)


def test_a_new_file_has_the_mode_asked_for_else_what_the_umask_leaves(tmp_path: Path) -> None:
    files.atomic_write(tmp_path / "asked", b"", mode=0o751)
    files.atomic_write(tmp_path / "not", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert mode(tmp_path / "asked") == 0o751
    assert mode(tmp_path / "not") == mode(tmp_path / "plain")


def test_what_replaces_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o600)
    seen: list[int] = []

    def look(step: str) -> None:
        seen.extend(mode(found) for found in tmp_path.glob(".key.*.tmp"))

    files.atomic_write(path, b"new", hook=look)
    assert set(seen) == {0o600}


def test_another_hard_link_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").hardlink_to(tmp_path / "file")
    files.atomic_write(tmp_path / "file", b"new")
    assert (tmp_path / "link").read_bytes() == b"old"


def test_a_file_can_be_read_with_digest_content_and_mode_together(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(0o640)
    status = path.stat()
    assert files.read_file(path) == files.FileSnapshot(
        digest(b"x"), b"x", 0o640, (status.st_uid, status.st_gid)
    )
    assert files.read_file(tmp_path / "none") == files.FileSnapshot(None)


# ---- what is refused ----


def odd_things(folder: Path) -> dict[str, str]:
    (folder / "outside").write_bytes(b"untouched")
    (folder / "directory").mkdir()
    (folder / "link").symlink_to(folder / "outside")
    (folder / "dangling").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "fifo")
    return {"directory": "directory", "link": "symlink", "dangling": "symlink", "fifo": "special"}


def test_what_is_no_regular_file_is_named_and_neither_written_nor_removed(tmp_path: Path) -> None:
    things = odd_things(tmp_path)
    before = names(tmp_path)
    for name, kind in things.items():
        assert files.read_digest(tmp_path / name) == kind
        with pytest.raises(FileRefused, match=kind):
            files.atomic_write(tmp_path / name, b"new")
        with pytest.raises(FileRefused, match=kind):
            files.atomic_delete(tmp_path / name)
    assert files.read_digest(tmp_path / "outside" / "under a file") == "unreachable"
    assert names(tmp_path) == before
    assert (tmp_path / "outside").read_bytes() == b"untouched"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../x", "leads out"),
        ("a/../../x", "leads out"),
        ("a/..", "leads out"),
        ("/etc/passwd", "leads out"),
        ("//x", "leads out"),
        ("", "names no file"),
        (".", "names no file"),
        ("a\0b", "not a text"),
        ("a\udc80b", "not a text"),
        (LEFTOVER.format("x"), "temporary"),
    ],
)
def test_a_path_that_leads_out_of_the_root_or_is_none_is_refused_in_one_sentence(
    tmp_path: Path, path: str, why: str
) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    with pytest.raises(FileRefused, match=why) as refusal:
        files.atomic_write(path, b"new", root=tmp_path / "root")
    assert "\n" not in str(refusal.value)
    assert names(tmp_path) == ["root"]
    assert names(tmp_path / "root") == ["a"]


def test_no_symlink_is_followed_below_the_root_wherever_it_leads(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in (root / "real", tmp_path / "outside"):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"old")
    (root / "in").symlink_to("real")
    (root / "out").symlink_to(tmp_path / "outside")
    for name in ("in", "out"):
        assert files.read_digest(f"{name}/file", root=root) == "unreachable"
        with pytest.raises(OSError, match="Not a directory"):
            files.atomic_write(f"{name}/file", b"new", root=root)
        with pytest.raises(OSError, match="Not a directory"):
            files.atomic_delete(f"{name}/file", root=root)
        with pytest.raises(OSError, match="Not a directory"):
            make_folder(f"{name}/new", root=root)
        assert files.sweep(name, root=root) == []
        assert not remove_folder(f"{name}/file", root=root)
    assert (root / "real" / "file").read_bytes() == (tmp_path / "outside" / "file").read_bytes() == b"old"


@pytest.mark.parametrize("prepare", [lambda root: files.stage("a/file", b"new", root=root), None])
def test_a_folder_swapped_for_a_symlink_between_check_and_rename_is_not_followed(
    tmp_path: Path, prepare: Callable[[Path], files.StagedWrite] | None
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    (root / "a" / "file").write_bytes(b"old")
    staged = prepare(root) if prepare else files.stage_delete("a/file", root=root)
    (root / "a").rename(root / "b")
    (root / "a").symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory"):
        staged.commit()
    assert names(outside) == []
    assert (root / "b" / "file").read_bytes() == b"old"


def test_a_symlink_put_in_the_place_of_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"untouched")
    staged = files.stage(tmp_path / "file", b"new")
    (tmp_path / "file").symlink_to("outside")
    staged.commit()
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "outside").read_bytes() == b"untouched"


# ---- what fails ----


class Fault(BaseException):
    pass


def failing(at: str) -> Callable[[str], None]:
    def hook(step: str) -> None:
        if step == at:
            raise Fault

    return hook


@pytest.mark.parametrize("at", WRITE_STEPS)
@pytest.mark.parametrize("old", [b"old", None])
def test_an_error_at_any_step_of_a_write_leaves_old_or_new_and_no_leftover(
    tmp_path: Path, at: str, old: bytes | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(Fault):
        files.atomic_write(path, b"new", hook=failing(at))
    renamed = WRITE_STEPS.index(at) >= WRITE_STEPS.index("renamed")
    assert files.read_file(path).content == (b"new" if renamed else old or b"")
    assert names(tmp_path) == ([] if old is None and not renamed else ["file"])


@pytest.mark.parametrize("at", ["renamed", "folder synced", "unlinked"])
def test_an_error_at_any_step_of_a_delete_leaves_no_leftover(tmp_path: Path, at: str) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(Fault):
        files.atomic_delete(tmp_path / "file", hook=failing(at))
    assert names(tmp_path) == []


def test_what_is_not_there_cannot_be_deleted_nor_written_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.atomic_delete(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        files.atomic_write(tmp_path / "none" / "file", b"")
    assert names(tmp_path) == []


def test_a_temporary_file_that_somebody_changed_is_not_put_in_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def garble(step: str) -> None:
        if step == "synced":
            (found,) = tmp_path.glob(".file.*.tmp")
            found.write_bytes(b"bad")

    with pytest.raises(Corrupt):
        files.atomic_write(path, b"new", hook=garble)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


FILL = """
import os, resource, signal, sys
from pathlib import Path
from orchestrator.files import atomic as files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    files.atomic_write(Path(sys.argv[1]), b"7" * 5000)
except OSError as error:
    print(os.strerror(error.errno))
files.atomic_write(Path(sys.argv[1]), b"7" * 4096)
"""


def test_a_write_beyond_the_size_limit_leaves_the_file_as_it_was_and_a_smaller_one_works(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    done = child(FILL, path)
    assert done.stdout == "File too large\n"
    assert path.read_bytes() == b"7" * 4096
    assert names(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_file_as_it_was_and_when_it_has_room_the_write_works(
    tmp_path: Path, absent: Callable[[str], NoReturn]
) -> None:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=False, capture_output=True
    )
    if mount.returncode:
        absent("no right to mount a small tmpfs")
    try:
        (tmp_path / "file").write_bytes(b"old")
        (tmp_path / "ballast").write_bytes(b"7" * 40_000)
        with pytest.raises(OSError, match="No space left"):
            files.atomic_write(tmp_path / "file", b"n" * 40_000)
        assert (tmp_path / "file").read_bytes() == b"old"
        assert names(tmp_path) == ["ballast", "file"]
        (tmp_path / "ballast").unlink()
        files.atomic_write(tmp_path / "file", b"n" * 40_000)
        assert files.read_digest(tmp_path / "file") == digest(b"n" * 40_000)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# ---- leftovers ----


def test_a_sweep_removes_our_leftovers_and_nothing_else(tmp_path: Path) -> None:
    kept = [".x.tmp", ".x.0123456789abcde.tmp", ".x.0123456789ABCDEF.tmp", "x.0123456789abcdef.tmp", "x"]
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / LEFTOVER.format("link")).symlink_to("x")
    (tmp_path / LEFTOVER.format("somebody's")).mkdir()
    (tmp_path / LEFTOVER.format("somebody's") / "other").write_bytes(b"")
    kept += [LEFTOVER.format("link"), LEFTOVER.format("somebody's")]
    (tmp_path / LEFTOVER.format("a")).write_bytes(b"half")
    (tmp_path / LEFTOVER.format("b")).mkdir()
    (tmp_path / LEFTOVER.format("b") / "b").write_bytes(b"deleted")
    (tmp_path / LEFTOVER.format("c")).mkdir()
    ours = [LEFTOVER.format(name) for name in "abc"]
    assert files.sweep(tmp_path, name="a") == ours[:1]
    assert files.sweep(tmp_path) == ours[1:]
    assert files.sweep(tmp_path) == []
    assert names(tmp_path) == sorted(kept)
    assert files.sweep(tmp_path / "none") == files.sweep(tmp_path / "x") == []


@pytest.mark.parametrize("prepare", [lambda path: files.stage(path, b"new"), files.stage_delete])
def test_a_change_whose_preparation_was_swept_fails_and_changes_nothing(
    tmp_path: Path, prepare: Callable[[Path], files.StagedWrite]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    staged = prepare(path)
    assert files.sweep(tmp_path, name="file") == [staged.temporary]
    with pytest.raises(FileNotFoundError):
        staged.commit()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_folders_are_made_once_and_removed_only_when_empty(tmp_path: Path) -> None:
    assert make_folder("a", root=tmp_path)
    assert not make_folder("a", root=tmp_path)
    (tmp_path / "a" / "file").write_bytes(b"")
    assert not remove_folder("a", root=tmp_path)
    assert not remove_folder("a/file", root=tmp_path)
    assert not remove_folder("b", root=tmp_path)
    (tmp_path / "a" / "file").unlink()
    assert remove_folder("a", root=tmp_path)
    assert names(tmp_path) == []


# ---- as the system sees it ----

WRITE = """
import sys
from pathlib import Path
from orchestrator.files import atomic as files
path = Path(sys.argv[1])
try:
    files.atomic_write(path, b"new")
    files.atomic_delete(path)
except OSError as error:
    print(error.strerror)
"""
CALLS = "--trace=openat,write,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdirat"


def child(script: str, path: Path, *wrapper: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*wrapper, sys.executable, "-c", script, path]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


@pytest.mark.system("strace")
def test_content_is_synced_before_the_rename_and_the_folder_after_it(tmp_path: Path) -> None:
    path, log = tmp_path / "synced" / "file", tmp_path / "log"
    path.parent.mkdir()
    child(WRITE, path, "strace", "-y", "-o", log, CALLS)
    seen = [line for line in log.read_text().splitlines() if "/synced" in line and "O_RDONLY" not in line]
    shape = [re.sub(r"\.file\.[0-9a-f]{16}\.tmp", "TEMPORARY", line) for line in seen]
    short = [re.split(r"[(,]", line)[0] + (" TEMPORARY" if "TEMPORARY" in line else "") for line in shape]
    assert [name.replace("renameat2", "renameat") for name in short] == [
        "openat TEMPORARY",
        "write TEMPORARY",
        "fsync TEMPORARY",
        "renameat TEMPORARY",
        "fsync",
        "mkdirat TEMPORARY",
        "renameat TEMPORARY",
        "unlinkat TEMPORARY",
        "unlinkat TEMPORARY",
        "fsync",
    ]


@pytest.mark.system("strace")
@pytest.mark.parametrize(("call", "left"), [(1, b"old"), (2, b"new"), (3, None)])
def test_an_io_error_of_any_sync_is_raised_and_no_half_is_left(
    tmp_path: Path, call: int, left: bytes | None
) -> None:
    path, log = tmp_path / "work" / "file", tmp_path / "log"
    path.parent.mkdir()
    path.write_bytes(b"old")
    injected = f"--inject=fsync:error=EIO:when={call}"
    done = child(WRITE, path, "strace", "-o", log, "--trace=fsync", injected)
    assert done.stdout == "Input/output error\n"
    assert files.read_file(path) == files.FileSnapshot(None) if left is None else path.read_bytes() == left
    assert names(path.parent) == ([] if left is None else ["file"])


@pytest.mark.campaign
@pytest.mark.system("strace")
@pytest.mark.parametrize(
    ("name", "call"),
    [("openat", 3), ("openat", 5), ("fsync", 1), ("fsync", 2), ("mkdirat", 1), ("unlinkat", 1)]
    + [("renameat,renameat2", call) for call in (1, 2)],
)
def test_a_kill_at_any_system_call_leaves_a_whole_file_and_a_leftover_that_is_swept(
    tmp_path: Path, name: str, call: int
) -> None:
    path, log = tmp_path / "work" / "file", tmp_path / "log"
    path.parent.mkdir()
    path.write_bytes(b"old")
    command: list[Any] = [
        "strace", "-o", log, "-P", path.parent, "-P", path, f"--inject={name}:signal=KILL:when={call}",
        sys.executable, "-c", WRITE, path,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    files.sweep(path.parent)
    assert names(path.parent) in ([], ["file"])
    assert not path.exists() or path.read_bytes() in {b"old", b"new"}


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_no_file_descriptor_is_left_open_whatever_happens(tmp_path: Path) -> None:
    odd_things(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    before = descriptors()
    for _ in range(min(limit, 200)):
        for name in ("file", "fifo", "link", "directory", "none"):
            files.read_file(tmp_path / name)
            files.read_digest(f"{name}/under", root=tmp_path)
        with pytest.raises(FileRefused):
            files.atomic_write(tmp_path / "directory", b"")
        files.atomic_write(tmp_path / "file", b"")
        files.sweep(tmp_path)
    assert descriptors() <= before

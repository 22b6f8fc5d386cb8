"""Power loss on paper: a recorded trace of system calls, and the disks it may leave behind.

`strace` records an unmodified process. The model keeps for each file its durable bytes and the writes that no sync
has covered yet, and for the folder its durable names and the changes of names since. A sync of a file makes its
bytes durable, and if it is new its name with all earlier changes of names (as a journalling file system does); a
sync of the folder makes all names durable. At each call the power may go: then of what is not durable anything,
in sectors, may be there.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

SECTOR = 512

Image: TypeAlias = dict[str, bytes | None]
"""Path -> content, or None for a folder."""

CALLS = (
    "openat,write,pwrite64,fsync,fdatasync,ftruncate,"
    "rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat"
)

LINE = re.compile(r"^(?P<pid>\d+)\s+(?P<name>\w+)\((?P<arguments>.*)\)\s+=\s+(?P<result>-?\d+)(?P<rest>.*)$")
UNFINISHED = re.compile(r"^(?P<pid>\d+)\s+(?P<begin>\w+\(.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"^(?P<pid>\d+)\s+<\.\.\. \w+ resumed>(?P<end>.*)$")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
NAMED = re.compile(r'(?:(?:\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>, )?"((?:\\x[0-9a-f]{2})*)"')
"""A name, and the folder that it is relative to where one is given by a descriptor."""
DESCRIPTOR = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that took effect. `path` is relative to the traced folder, "" for the folder itself."""

    name: str
    path: str
    data: bytes = b""
    offset: int | None = None
    size: int = 0
    to: str = ""


def record(command: Sequence[str | Path], trace: Path, environment: dict[str, str], cwd: Path) -> None:
    """Run a command under strace."""
    options = ("-f", "-y", "-xx", "-s", "99999999", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", trace)
    subprocess.run(["strace", *options, *command], env=environment, cwd=cwd, check=True, timeout=100)


def calls(trace: Path, root: Path) -> Iterator[Call]:
    """Yield the calls below `root` that succeeded, in the order in which they returned."""
    begun: dict[str, str] = {}
    with trace.open(encoding="ascii") as lines:
        for line in lines:
            text = line.rstrip("\n")
            if found := UNFINISHED.match(text):
                begun[found["pid"]] = f"{found['pid']} {found['begin']}"
                continue
            if found := RESUMED.match(text):
                text = begun.pop(found["pid"]) + found["end"].lstrip()
            if (found := LINE.match(text)) and int(found["result"]) >= 0:
                yield from _call(found["name"], found["arguments"], f"{root}/")


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


SAME = {"fsync": "sync", "fdatasync": "sync", "write": "write", "pwrite64": "write", "ftruncate": "resize"}
NAMES = ("rename", "link", "unlink", "mkdir")


def _named_in(name: str, arguments: str) -> list[tuple[str, str]]:
    """Return the names among the arguments of a call that takes names."""
    return [] if name in SAME else NAMED.findall(arguments)


def _call(name: str, arguments: str, root: str) -> Iterator[Call]:
    named = [
        str(Path(_plain(at).decode()) / _plain(text).decode()) for at, text in _named_in(name, arguments)
    ]
    descriptor = DESCRIPTOR.match(arguments)
    path = named[0] if named else _plain(descriptor[1]).decode() if descriptor else ""
    if not f"{path}/".startswith(root) or path.endswith("-shm"):
        return
    inside, last = path[len(root) :], arguments.rsplit(", ", 1)[-1]
    if name == "openat":
        if "O_CREAT" in arguments or "O_TRUNC" in arguments:
            yield Call("truncate" if "O_TRUNC" in arguments else "create", inside)
    elif name in SAME:
        data = _plain(TEXT.findall(arguments)[0]) if SAME[name] == "write" else b""
        offset = int(last) if name == "pwrite64" else None
        yield Call(SAME[name], inside, data, offset, size=int(last) if name == "ftruncate" else 0)
    else:
        plain = next(known for known in NAMES if name.startswith(known))
        yield Call(plain, inside, to=named[1][len(root) :] if len(named) > 1 else "")


@dataclass(slots=True, eq=False)
class File:
    """One file: what is on disk for certain, what a process sees, and the writes between the two."""

    durable: bytes = b""
    seen: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, bytes), or (size, None) for a change of length."""
    name_waits: bool = True


class Disk:
    """The model. `apply` takes one call; `images` are the disks that a power loss now may leave.

    What is in `there` is on disk from the beginning.
    """

    def __init__(self, there: Image | None = None) -> None:
        self.names: dict[str, File | None] = {}
        """Path -> file, None for a folder; as processes see it."""
        self.durable_names: dict[str, File | None] = {}
        self.changes: list[tuple[str, str, File | None]] = []
        """(`set` or `drop`, path, file) not durable yet."""
        for path, content in (there or {}).items():
            file = None if content is None else File(content, bytearray(content), name_waits=False)
            self.names[path] = self.durable_names[path] = file

    def apply(self, call: Call) -> None:
        file = self.names.get(call.path)
        match call.name:
            case "create" | "truncate" | "mkdir" if call.path not in self.names:
                self._change("set", call.path, None if call.name == "mkdir" else File())
            case "truncate" if file is not None:
                _write(file, 0, None)
            case "write" if file is not None:
                _write(file, len(file.seen) if call.offset is None else call.offset, call.data)
            case "resize" if file is not None:
                _write(file, call.size, None)
            case "rename" | "link" | "unlink":
                self._move(call, file)
            case "sync":
                self._sync(call.path, file)
            case _:
                pass

    def _move(self, call: Call, file: File | None) -> None:
        if call.name == "rename" and file is None:  # a folder: with all that is in it
            inside = [path for path in self.names if f"{path}/".startswith(f"{call.path}/")]
            for path in inside:
                self._change("set", call.to + path.removeprefix(call.path), self.names[path])
                self._change("drop", path, None)
            return
        if file is not None and call.to:
            self._change("set", call.to, file)
        if call.name != "link":
            self._change("drop", call.path, None)

    def _change(self, what: str, path: str, file: File | None) -> None:
        self.changes.append((what, path, file))
        _named(self.names, what, path, file)

    def _sync(self, path: str, file: File | None) -> None:
        if file is not None:
            file.durable, file.waiting = bytes(file.seen), []
        if file is None or file.name_waits:
            last = len(self.changes)
            if file is not None:
                mine = [n for n, (what, _, of) in enumerate(self.changes) if what == "set" and of is file]
                last = mine[0] + 1 if mine else 0
                file.name_waits = False
            for change in self.changes[:last]:
                _named(self.durable_names, *change)
            del self.changes[:last]
        del path

    # ---- what may be left ----

    def images(self, chance: random.Random, mixed: int) -> Iterator[tuple[str, Image]]:
        """Yield (what happened, path -> content or None for a folder)."""
        yield "killed", _contents(self.names, lambda file: bytes(file.seen))
        yield "nothing unsynced", _contents(self.durable_names, lambda file: file.durable)
        yield "names alone", _contents(self.names, lambda file: file.durable)
        for _ in range(mixed):
            names = dict(self.durable_names)
            for change in self.changes[: chance.randrange(len(self.changes) + 1)]:
                _named(names, *change)
            yield "mixed", _contents(names, lambda file: _torn(file, chance))


def _contents(names: dict[str, File | None], content: Callable[[File], bytes]) -> Image:
    return {path: None if file is None else content(file) for path, file in names.items()}


def _named(names: dict[str, File | None], what: str, path: str, file: File | None) -> None:
    if what == "set":
        names[path] = file
    else:
        names.pop(path, None)


def _write(file: File, offset: int, data: bytes | None) -> None:
    file.waiting.append((offset, data))
    _put(file.seen, offset, data)


def _put(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        content[offset:] = bytes(max(0, offset - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _torn(file: File, chance: random.Random) -> bytes:
    """Of each write that waits any sectors, in any order, some of them garbage."""
    content = bytearray(file.durable)
    for offset, data in file.waiting:
        if data is None:
            if chance.random() < 0.5:
                _put(content, offset, None)
            continue
        for start in range(0, len(data), SECTOR):
            luck = chance.random()
            sector = data[start : start + SECTOR]
            if luck < 0.1:
                _put(content, offset + start, chance.randbytes(len(sector)))
            elif luck < 0.55:
                _put(content, offset + start, sector)
    return bytes(content)


def laid_out(folder: Path, root: Path) -> Image:
    """Return what is in a folder as an image, its paths relative to `root`."""
    found = {path: path.read_bytes() if path.is_file() else None for path in [folder, *folder.rglob("*")]}
    return {str(path.relative_to(root)): content for path, content in sorted(found.items())}


def lay_out(image: Image, folder: Path) -> None:
    """Write an image to a real folder."""
    folder.mkdir()
    for path, content in sorted(image.items()):
        target = folder / path
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

"""Stores of numbers, right and wrong ones: what the model of power loss must tell apart.

`python -m tests.crash.stores MODE FOLDER LOG` puts numbers away and logs `ACK n`; `numbers` reads them back.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import apsw

COUNT = 12
MODES = {
    "sqlite wal/full": True,
    "sqlite wal/normal": False,
    "sqlite delete/full": False,
    "sqlite delete/extra": True,
    "json in place": False,
    "json rename": False,
    "json sync,rename": False,
    "json sync,rename,folder": True,
}
"""Mode -> whether it keeps what it acknowledged."""


def put_all(mode: str, folder: Path, said: Callable[[int], None]) -> None:
    if mode.startswith("sqlite"):
        journal, synchronous = mode.partition(" ")[2].split("/")
        db = apsw.Connection(str(folder / "n.db"))
        db.pragma("journal_mode", journal)
        db.pragma("synchronous", synchronous)
        db.execute("CREATE TABLE IF NOT EXISTS n(n, pad)")
        for number in range(COUNT):
            db.execute("INSERT INTO n VALUES (?, zeroblob(1500))", (number,))
            said(number)
        os._exit(0)  # without the checkpoint that closing does
    for number in range(COUNT):
        content = json.dumps({"numbers": list(range(number + 1)), "pad": "x" * 1500}).encode()
        put_file(folder, content, mode.partition(" ")[2].split(","))
        said(number)


def put_file(folder: Path, content: bytes, how: list[str]) -> None:
    target = folder / "n.json"
    path = target if how == ["in place"] else folder / "n.tmp"
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.write(descriptor, content)
    if "sync" in how or path == target:
        os.fsync(descriptor)
    os.close(descriptor)
    if path != target:
        path.rename(target)
    if "folder" in how:
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def numbers(mode: str, folder: Path) -> list[int]:
    """Read them back. Raises ValueError or apsw.Error when they cannot be read."""
    if mode.startswith("sqlite"):
        if not (folder / "n.db").exists():
            return []
        db = apsw.Connection(str(folder / "n.db"))
        try:
            if not db.table_exists(None, "n"):
                return []
            return [row[0] for row in db.execute("SELECT n FROM n ORDER BY rowid")]
        finally:
            db.close()
    if not (folder / "n.json").exists():
        return []
    return list(json.loads((folder / "n.json").read_bytes())["numbers"])


def print_to(log: int, number: int) -> None:
    os.write(log, b"ACK %d\n" % number)


if __name__ == "__main__":
    log = os.open(sys.argv[3], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    put_all(sys.argv[1], Path(sys.argv[2]), lambda number: print_to(log, number))

"""Who began a run: what its journal names is used without a word only where this user began it, on this machine.

A journal says whom a run asks and what it starts: models and their addresses, MCP servers, tools, programs, a folder.
A folder from somebody else may bring a journal along, and to resume one of its runs would send the user's key to
whatever address stands there, or start whatever program. That the file is the user's own says nothing: so is a clone.

So what the command line begins is sealed: with it goes an HMAC of it, under a key that lies outside of every project
and goes nowhere. Whatever has no such seal is refused, with all that it names, unless --trust says yes. It is the same
for every graph and every store: a seal goes with its run, through a reboot, into a moved folder, into PostgreSQL.

The key is `orchestrator/seal.key` in XDG_STATE_HOME, by default ~/.local/state; where nothing can be written there (a
container with a read-only home, or none) in a folder of the user's own among the temporary files, which lives as long
as these. Where there is no place at all, nothing is sealed, and to resume takes --trust.

Rejected: a list of the user's journals (it grows, and a journal of one's own in a stranger's folder makes the
stranger's runs one's own); the file's inode or attributes (a checkout reuses the one, an archive carries the other);
to ask only about addresses that are not the vendor's (tools, programs and the folder of a forged run do more than an
address can, and what is stored of its calls is carried out).

A seal is of how a run was begun, not of its records. Whoever gets hold of a journal can change what stands in its
runs: such a run asks and starts nothing but what its user once named, but with the calls of somebody else.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.cli.output import shown
from orchestrator.errors import ConfigError

SEAL = "seal"
"""Member of a launch."""
KEY = "seal.key"
_BYTES = 32
_USED = (
    "base_url",
    "model",
    "sub_model",
    "mcp",
    "mcp_env",
    "command",
    "python",
    "tools",
    "budget",
    "plan",
    "cwd",
)
"""Members of launches, of every graph, that say whom a run asks or what it starts; the worst first."""
_SHOWN = 200
_NAMED = 12
_DEEPEST = 8


def sealed(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept with a run that this user begins, or has said yes to."""
    plain = _unsealed(launch)
    key = next((key for folder in _folders() if (key := _read(folder) or _made(folder))), None)
    return plain if key is None else {**plain, SEAL: _seal(plain, key)}


def is_own(launch: object) -> bool:
    """Tell whether this user sealed what is kept with a run, on this machine."""
    seal = launch.get(SEAL) if isinstance(launch, Mapping) else None
    if not isinstance(launch, Mapping) or not isinstance(seal, str) or not seal.isascii():
        return False
    plain = _unsealed(launch)
    keys = [key for folder in _folders() if (key := _read(folder))]
    try:
        return any(hmac.compare_digest(seal, _seal(plain, key)) for key in keys)
    except RecursionError:  # nothing of ours is that deep
        return False


def refuse_strange(launch: object, what: str, *, trust: bool, does: str = "") -> None:
    """Raise ConfigError for a launch that somebody else made, with all that it would use, unless that is trusted.

    A run without one names nothing: what it goes on with stands on the command line. Where it `does` something
    nevertheless, that is said, and it is refused too.
    """
    if trust or (not launch and not does) or is_own(launch):
        return
    named = [*([does] if does else []), *_named(launch)]
    raise ConfigError(
        f"{what} was not begun by you on this machine; it would {', '.join(named)}: --trust says yes to that, if you "
        "trust whoever made its journal"
    )


def _named(launch: object) -> list[str]:
    found = [f"use {name} {shown(value, _SHOWN)!r}" for name in _USED for value in _values(launch, name)]
    found = list(dict.fromkeys(found))
    more = len(found) - _NAMED
    found = found[:_NAMED] + ([f"and {more} more"] if more > 0 else [])
    return found or ["go on as it says there"]


def _values(launch: object, name: str, deep: int = 0) -> Iterator[str]:
    """Yield what members of this name say, as deep as launches are; the words of a command as one."""
    if isinstance(launch, Mapping) and deep < _DEEPEST:
        for member, value in launch.items():
            if member != name:
                yield from _values(value, name, deep + 1)
            elif isinstance(value, str) and value:
                yield value
            elif isinstance(value, list | tuple):
                words = [str(word) for word in value]
                yield from [shlex.join(words)] * bool(words) if name == "command" else words


def _unsealed(launch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in launch.items() if name != SEAL}


def _seal(plain: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


# ---- the key ----


def _folders() -> Iterator[Path]:
    """Yield where the key may be, the best place first."""
    state: Path | None = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state is not None and not state.is_absolute():
        state = _home_state()
    if state is not None:
        yield state / "orchestrator"
    temporary = Path(os.environ.get("TMPDIR", ""))
    place = temporary if temporary.is_absolute() else Path("/tmp")  # noqa: S108 - a folder of our own, see _is_ours
    yield place / f"orchestrator-{os.geteuid()}"


def _home_state() -> Path | None:
    """Return the default of XDG_STATE_HOME; None without a home, which nobody makes here."""
    with suppress(OSError, RuntimeError):  # nobody may look, or knows, where it is
        home = Path.home()
        return home / ".local" / "state" if home.is_absolute() and home.is_dir() else None
    return None


def _read(folder: Path) -> bytes | None:
    """Return the key in a folder; None where there is none that only this user can have put there."""
    with suppress(OSError):
        if not _is_ours(folder.lstat(), stat.S_ISDIR, 0o022):
            return None
        descriptor = os.open(folder / KEY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            key = os.read(descriptor, _BYTES + 1)
            if len(key) == _BYTES and _is_ours(os.fstat(descriptor), stat.S_ISREG, 0o077):
                return key
        finally:
            os.close(descriptor)
    return None


def _is_ours(status: os.stat_result, kind: Callable[[int], bool], closed: int) -> bool:
    """Tell whether it is of that kind, of this user, and closed to others; a file of a checkout is readable to all."""
    return kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & closed


def _made(folder: Path) -> bytes | None:
    """Make a key, whole or not at all; return the one that is there then, perhaps another process's."""
    draft = folder / f".{secrets.token_hex(8)}.tmp"
    with suppress(OSError):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, secrets.token_bytes(_BYTES))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with suppress(FileExistsError):
                os.link(draft, folder / KEY)
        finally:
            draft.unlink(missing_ok=True)
    return _read(folder)

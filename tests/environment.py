"""The environment of the tests: the same on every machine, whatever its user has configured.

`make_neutral` keeps a few variables and drops the others: settings, keys of vendors, proxies, locales. Home and
temporary folder are new ones. Processes that a test starts inherit this, and can import what a test can import.
`of_user` and `for_installers` have what the user has set for the tests themselves, and for pip and npm.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MEMORY: Final = Path("/dev/shm")  # noqa: S108  only a parent of temporary folders
ROOM: Final = 1 << 30

KEPT: Final = re.compile(
    r"PATH|CI|USER|LOGNAME|LD_\w+|COV\w+|PYTEST_XDIST_\w+"
    r"|TEST_TIER|TEST_TRANSCRIPT|(ORCHESTRATOR|DRAWING|CONSOLE)_PICTURES"
)
FIXED: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "LANG": "C.UTF-8",
    "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "callbacks", "guards")),
    "SHELL": "/bin/sh",
    "TERM": "xterm",
    "TZ": "UTC",
}

_USER: Final = "TEST_USER_"
"""Prefix under which a variable of the user is kept: no process that a test starts knows it by its own name."""
_OF_TESTS: Final = re.compile(r"ORCHESTRATOR_(SEED|SOAK)|HOME|PYENV_ROOT")
_OF_INSTALLERS: Final = re.compile(
    r"HOME|XDG_(CONFIG|CACHE)_HOME|(PIP|UV|NPM_CONFIG)_\w+|\w+_PROXY"
    r"|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|NODE_EXTRA_CA_CERTS",
    re.IGNORECASE,
)


def make_neutral() -> None:
    """Replace the environment of this process; its folders are removed when it ends."""
    users = {name: value for name, value in os.environ.items() if name.startswith(_USER)}
    inner = bool(users)  # started by a session that did this
    if not inner:
        users = {
            _USER + name: value
            for name, value in os.environ.items()
            if _OF_TESTS.fullmatch(name) or _OF_INSTALLERS.fullmatch(name)
        }
    os.umask(0o022)
    place = Path(tempfile.mkdtemp(prefix="tests-", dir=os.environ["TMPDIR"] if inner else temporary_root()))
    place.chmod(0o711)  # the user of PostgreSQL's server has to get through
    atexit.register(_remove, place, os.getpid())
    home, temporary = place / "home", place / "tmp"
    home.mkdir(0o700)
    temporary.mkdir()
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    own = {"HOME": str(home), "TMPDIR": str(temporary), "PYTEST_DEBUG_TEMPROOT": str(temporary_root())}
    os.environ.clear()
    os.environ.update(kept | users | FIXED | own)
    tempfile.tempdir = None
    time.tzset()


def of_user(name: str) -> str | None:
    """Return a variable as the user has set it who runs the tests."""
    return os.environ.get(_USER + name, os.environ.get(name))


def for_installers() -> dict[str, str]:
    """Return the environment for programs that download packages: with the user's configuration and proxies."""
    users = {name.removeprefix(_USER): value for name, value in os.environ.items() if name.startswith(_USER)}
    return os.environ | {name: value for name, value in users.items() if _OF_INSTALLERS.fullmatch(name)}


def memory() -> Path | None:
    """Where temporary files need no disk: thousands of journals sync, and a kill takes nothing from memory either.

    None where there is no such place, it is small (a container's), or what lies there may not be run.
    """
    if not os.access(MEMORY, os.W_OK):
        return None
    found = os.statvfs(MEMORY)
    roomy = found.f_bavail * found.f_frsize >= ROOM
    return MEMORY if roomy and not found.f_flag & os.ST_NOEXEC else None


def temporary_root() -> Path:
    """Return the folder for temporary folders: that of PYTEST_DEBUG_TEMPROOT, memory, or the usual one."""
    chosen = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    return Path(chosen) if chosen else memory() or Path(tempfile.gettempdir())


def _remove(place: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(place, ignore_errors=True)

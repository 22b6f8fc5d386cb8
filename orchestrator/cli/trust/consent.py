"""What the user consents to: configuration files and the runs of a journal. All refusals are made here.

The permissions for one command (`--trust`) or for the processes of one environment (ORCHESTRATOR_TRUST) come first.
ORCHESTRATOR_TRUST is a list of absolute paths, separated as in PATH. The path of a file allows that file with any
content; the path of a folder allows every configuration file and every journal in it and below it. `all` allows
everything, also the runs of a database. The safest useful value is the path of the one file that the image brings.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orchestrator
from orchestrator.cli.output import shown
from orchestrator.cli.redaction import redacted
from orchestrator.cli.runs.phrase import words
from orchestrator.cli.trust.signature import is_own
from orchestrator.cli.trust.state import folders, read_all_state, read_state, remove_state, write_state
from orchestrator.errors import ConfigError, see_guide
from orchestrator.journal.address import Address

if TYPE_CHECKING:
    from orchestrator.settings import Settings

# ---- permissions ----

VARIABLE = "ORCHESTRATOR_TRUST"
EVERYTHING = "all"
DEFAULT_FILE = "orchestrator.toml"

_ALLOWED: ContextVar[bool] = ContextVar("orchestrator_trust", default=False)


@contextmanager
def command_trust(*, allowed: bool) -> Iterator[None]:
    """Allow everything inside the block if the command has `--trust`."""
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def is_everything_allowed() -> bool:
    """Return whether the command or the environment allows everything. Raises ConfigError for a wrong variable."""
    return EVERYTHING in _entries() or _ALLOWED.get()


def is_allowed(file: Path, *, folder: Path | None = None) -> bool:
    """Return whether the command or the environment allows a file.

    `folder` is the working directory, if the names in the file depend on it. Raises ConfigError for a wrong variable.
    """

    def covers(entry: Path, place: Path) -> bool:
        place = location(place)
        return place == location(entry) or place.is_relative_to(os.path.realpath(entry))

    if is_everything_allowed():
        return True
    for entry in map(Path, _entries()):
        around = entry if entry.is_dir() else entry.parent
        if covers(entry, file) and (folder is None or covers(around, folder)):
            return True
    return False


def location(file: Path) -> Path:
    """Return the absolute path of a file: the links of its folder are resolved, that of the file itself is not."""
    return Path(os.path.realpath(file.parent)) / file.name


def _entries() -> list[str]:
    entries = [entry for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    for entry in entries:
        if entry != EVERYTHING and not Path(entry).is_absolute():
            raise ConfigError(
                f"{VARIABLE} has {entry!r}; possible: absolute paths of files or folders, separated by "
                f"{os.pathsep!r}, or {EVERYTHING!r}"
            )
    return entries


# ---- configuration files ----

_LARGEST = 1 << 20
"""Bytes of a configuration file."""
_PREFIX = "consent-"


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """The content of a configuration file, read once: the bytes that are checked are the bytes that are parsed."""

    given: Path
    """The path as the command line names it."""
    path: Path
    """Absolute; the link that the file itself may be is not resolved."""
    folder: Path
    """The working directory, in which its names are resolved."""
    digest: str
    """SHA-256 of its bytes, as `sha256sum` prints it."""
    members: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> ProjectFile:
        """Read a TOML file. Raises ConfigError if it is not TOML or too large, or OSError."""
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigError(f"{file} cannot be read: it has more than {_LARGEST:,} bytes")
        try:
            members = tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
            raise ConfigError(f"{file} cannot be read: it is not TOML ({error})") from error
        return cls(file, location(file), Path.cwd(), hashlib.sha256(data).hexdigest(), members)


@dataclass(frozen=True, slots=True)
class TrustConsent:
    """A content of a file that the user trusts in one working directory: one small file of the state."""

    file: str
    folder: str
    digest: str
    at: float = 0.0
    """When it was recorded, in seconds since the epoch."""

    @classmethod
    def to(cls, file: ProjectFile) -> TrustConsent:
        """Return the consent that a file needs."""
        return cls(str(file.path), str(file.folder), file.digest)

    @property
    def name(self) -> str:
        """Name of the file of the consent."""
        key = json.dumps([self.file, self.folder, self.digest])
        return f"{_PREFIX}{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()}.json"

    @property
    def is_recorded(self) -> bool:
        """Whether the user gave it."""
        return any(True for _ in read_state(self.name))

    def record(self) -> None:
        """Record it. Raises ConfigError if no place for it can be written."""
        body = json.dumps({**asdict(self), "at": time.time()}).encode()
        if write_state(self.name, body) is None:
            raise ConfigError(
                f"the consent {unwritable()}, or allow it with --trust for each command, or with ORCHESTRATOR_TRUST"
            )

    def revoke(self) -> None:
        """Remove it. Raises OSError."""
        remove_state(self.name)


def consents() -> Iterator[TrustConsent]:
    """Yield every consent that is recorded."""
    for _, data in read_all_state(_PREFIX):
        try:
            yield TrustConsent(**json.loads(data))
        except (ValueError, TypeError):  # a later version wrote it
            continue


def unwritable() -> str:
    """Return the end of the sentence about state that cannot be written."""
    tried = ", ".join(map(str, folders()))
    return f"cannot be recorded: no folder can be written of {tried}; set XDG_STATE_HOME to a folder of yours"


def is_trusted_file(file: ProjectFile) -> bool:
    """Return whether a configuration file may be used. Raises ConfigError for a wrong ORCHESTRATOR_TRUST."""
    shipped = location(Path(orchestrator.__file__).parent)
    return (
        not file.members
        or file.path.is_relative_to(shipped)
        or is_allowed(file.given, folder=file.folder)
        or TrustConsent.to(file).is_recorded
    )


def is_trusted_folder(folder: Path) -> bool:
    """Return whether the user trusts the content of a folder: a configuration file in it, or the whole folder.

    Raises ConfigError for a wrong ORCHESTRATOR_TRUST.
    """
    place = location(folder)
    return is_allowed(folder) or any(
        location(Path(consent.folder)) == place and Path(consent.file).is_relative_to(place)
        for consent in consents()
    )


def refuse_untrusted_file(file: ProjectFile) -> None:
    """Raise ConfigError for a configuration file with content to which the user did not consent."""
    if is_trusted_file(file):
        return
    known = [consent for consent in consents() if consent.file == str(file.path)]
    if any(consent.digest == file.digest for consent in known):
        state = "is not trusted in this working directory"
    else:
        state = "has changed since you trusted it" if known else "is not trusted"
    raise ConfigError(
        f"{shown(str(file.given), 300)} {state}; it would {named_in(uses_of_file(file))}: read it, then "
        f"`{words('trust', str(file.given))}` in {shown(str(file.folder), 300)} allows this content, or --trust "
        "allows it for this command"
    )


def project_settings() -> Settings:
    """Return the settings of the working directory: environment, then its `orchestrator.toml`.

    Every member of that file needs consent: a model, an address and a folder decide where prompts and keys are
    sent, parameters can name servers to the provider, and limits, retries and prices decide the costs of a run. Raises
    ConfigError.
    """
    from orchestrator.settings import Settings  # which a look at runs does not need

    file = settings_file()
    if file is None:
        return Settings.load()
    refuse_untrusted_file(file)
    return Settings.load(file.members)


def settings_file() -> ProjectFile | None:
    """Return the `orchestrator.toml` of the working directory, or None. It is not checked. Raises ConfigError."""
    path = Path(DEFAULT_FILE)
    try:
        return ProjectFile.read(path) if path.is_file() else None
    except OSError as error:
        raise ConfigError(f"{DEFAULT_FILE} cannot be read: {error}") from error


def configuration(file: Path) -> Mapping[str, Any]:
    """Return the content of a configuration file that the user trusts. Raises ConfigError or OSError."""
    found = ProjectFile.read(file)
    refuse_untrusted_file(found)
    return found.members


# ---- runs ----


def is_trusted_run(launch: object, journal: Address) -> bool:
    """Return whether the launch of a run may be used."""
    return is_own(launch) or (is_allowed(journal) if isinstance(journal, Path) else is_everything_allowed())


def refuse_untrusted_run(launch: object, what: str, journal: Address, *, does: str = "") -> None:
    """Raise ConfigError for a run that another person started, with everything that it would use.

    A run without a launch names nothing: it continues with the objects that the command line names. If it `does`
    something nevertheless, the sentence contains that, and the run is refused too.
    """
    if (not launch and not does) or is_trusted_run(launch, journal):
        return
    named = [*([does] if does else []), *_uses(launch)] or ["continue as its journal says"]
    raise ConfigError(
        f"{what} was not started by you on this machine; it would {named_in(named)}: --trust allows that for this "
        f"command, if you trust the person who made its journal; {see_guide('security')}"
    )


# ---- the uses of files and runs ----

_USED = (
    *(
        "base_url",
        "model",
        "sub_model",
        "mcp",
        "mcp_env",
        "env",
        "command",
        "python",
        "agent",
        "arguments",
        "tools",
    ),
    *("budget", "plan", "journal", "requirements", "output_schema", "cwd", "prompt"),
)
"""Members of launches and of configuration files that name an address, code, a program or a folder; the worst first."""
_SHOWN = 200
_NAMED = 12
_DEEPEST = 8


def uses_of_file(file: ProjectFile) -> list[str]:
    """Return the uses of a configuration file, the worst first, and its other settings."""
    others = [name for name, value in file.members.items() if not _uses({name: value})]
    return _uses(file.members) + [f"set {shown(name, _SHOWN)}" for name in others]


def named_in(uses: list[str]) -> str:
    """Return the first of the uses in one phrase, and the number of the others."""
    more = len(uses) - _NAMED
    return ", ".join(uses[:_NAMED] + ([f"and {more} more"] if more > 0 else []))


def _uses(members: object) -> list[str]:
    found = [
        f"use {name} {shown(str(redacted(name, value)), _SHOWN)!r}"
        for name in _USED
        for value in _values(members, name)
    ]
    return list(dict.fromkeys(found))


def _values(members: object, name: str, depth: int = 0) -> Iterator[str]:
    """Yield the values of members of this name, in nested mappings too; the words of a command as one."""
    if isinstance(members, Mapping) and depth < _DEEPEST:
        for member, value in members.items():
            if str(member).casefold() != name:
                yield from _values(value, name, depth + 1)
            elif isinstance(value, str) and value:
                yield value
            elif isinstance(value, list | tuple):
                words = [str(word) for word in value]
                yield from [shlex.join(words)] * bool(words) if name == "command" else words

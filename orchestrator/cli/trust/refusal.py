"""Refuses untrusted content with one sentence: its uses, and the next action. All refusals are made here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.cli.output import shown
from orchestrator.cli.redaction import redacted
from orchestrator.cli.runs.phrase import words
from orchestrator.cli.trust.consent import TrustConsent, consents
from orchestrator.cli.trust.decision import is_allowed, is_everything_allowed, location
from orchestrator.cli.trust.project_file import ProjectFile
from orchestrator.cli.trust.signature import is_own
from orchestrator.errors import ConfigError, see_guide
from orchestrator.journal.address import Address

_USED = (
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
    "budget",
    "plan",
    "journal",
    "requirements",
    "output_schema",
    "cwd",
    "prompt",
)
"""Members of launches and of configuration files that name an address, code, a program or a folder; the worst first."""
_SHOWN = 200
_NAMED = 12
_DEEPEST = 8


def refuse_untrusted_file(file: ProjectFile) -> None:
    """Raise ConfigError for a configuration file with content to which the user did not consent."""
    if not is_trusted_file(file):
        given = shown(str(file.given), 300)
        command = words("trust", str(file.given))
        raise ConfigError(
            f"{given} {_state(file)}; it would {named_in(uses_of_file(file))}: read it, then `{command}` in "
            f"{shown(str(file.folder), 300)} allows this content, or --trust allows it for this command"
        )


def _state(file: ProjectFile) -> str:
    known = [one for one in consents() if one.file == str(file.path)]
    if any(one.digest == file.digest for one in known):
        return "is not trusted in this working directory"
    return "has changed since you trusted it" if known else "is not trusted"


def is_trusted_file(file: ProjectFile) -> bool:
    """Return whether a configuration file may be used. Raises ConfigError for a wrong ORCHESTRATOR_TRUST."""
    return (
        not file.members
        or file.is_shipped
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


def is_trusted_run(launch: object, journal: Address) -> bool:
    """Return whether the launch of a run may be used."""
    return is_own(launch) or (is_allowed(journal) if isinstance(journal, Path) else is_everything_allowed())


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

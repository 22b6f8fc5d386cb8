"""The address of a journal: the path of a file, or a PostgreSQL database. This module opens nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from orchestrator.errors import ConfigError

DEFAULT_JOURNAL: Final = Path(".orchestrator/journal.db")
"""The journal of a command line without settings."""
SCHEMES: Final = ("postgresql://", "postgres://")
_SECRETS: Final = re.compile(r"(?i)\b(password|sslpassword)\s*=\s*('(?:\\.|[^'\\])*'|[^\s&]*)")
_STARS: Final = r"\1=***"
_OTHER_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.:-]+)://", re.IGNORECASE)
_KEYWORDS: Final = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service)\s*=")


class JournalAddress:
    """The address of a PostgreSQL database. Its text and its repr show no password; `secret` is the full address.

    Args:
        secret: A URL (`postgresql://user:password@host:5432/database`), or libpq's `host=… dbname=…`.
    """

    __slots__ = ("secret",)

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __str__(self) -> str:
        scheme, separator, rest = self.secret.partition("://")
        if not separator:
            return _SECRETS.sub(_STARS, self.secret)
        # Split at the last @: a password with an unescaped @ or / must not be shown either.
        who, at, where = rest.rpartition("@")
        user = who.partition(":")[0]
        return f"{scheme}://{user}{at if user else ''}{_SECRETS.sub(_STARS, where)}"

    def __repr__(self) -> str:
        return f"JournalAddress({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JournalAddress) and other.secret == self.secret

    def __hash__(self) -> int:
        return hash(self.secret)

    @property
    def password(self) -> str:
        """The password as written in the address; empty without one."""
        separator, rest = self.secret.partition("://")[1:]
        who = rest.rpartition("@")[0] if separator else ""
        named = _SECRETS.search(rest if separator else self.secret)
        return who.partition(":")[2] or (named[2].strip("'") if named else "")


def hidden(text: str, dsn: str | JournalAddress) -> str:
    """Return a text with the address of a database and its password masked."""
    place = dsn if isinstance(dsn, JournalAddress) else JournalAddress(dsn)
    text = text.replace(place.secret, str(place))
    secrets = {place.password, unquote(place.password)} - {""}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


Address: TypeAlias = Path | JournalAddress


def address_of(given: Any) -> Address:
    """Return the address that a text names: `postgresql://…` and `host=…` are databases, other text a path.

    Raises ConfigError, also for a path that was made of such a URL (in which `//` became `/`).
    """
    if isinstance(given, JournalAddress):
        return _readable(given)
    if isinstance(given, Path):
        if str(given).startswith(tuple(scheme.replace("//", "/") for scheme in SCHEMES)):
            raise ConfigError("the address of a database was given as a path: give it as text")
        return given
    text = str(given)
    if text.startswith(SCHEMES) or _KEYWORDS.match(text):
        return _readable(JournalAddress(text))
    if other := _OTHER_SCHEME.match(text):
        raise ConfigError(f"a journal is a file or postgresql://…, not {other[1]}://…")
    if not text:
        raise ConfigError("a journal is a file or postgresql://…, not empty text")
    return Path(text)


def _readable(dsn: JournalAddress) -> JournalAddress:
    """Raise ConfigError if a part of the password would be parsed, and shown, as the host or the database."""
    separator, rest = dsn.secret.partition("://")[1:]
    who, _, where = rest.partition("?")[0].partition("@")
    if separator and ("@" in where or ("/" in who and where)):
        raise ConfigError(
            f"the address {dsn} cannot be read: write an @ in a user's name or a password as %40, and a / as %2F"
        )
    return dsn

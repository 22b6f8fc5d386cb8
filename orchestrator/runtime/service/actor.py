"""The user of this process: the default actor in records."""

from __future__ import annotations

import getpass


def login() -> str:
    """Return the login name; empty if it is unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def default_actor() -> str:
    """Return the login name; `unknown` if there is none."""
    return login() or "unknown"

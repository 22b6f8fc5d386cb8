"""The user of this process: the default actor in records."""

from __future__ import annotations

import getpass


def login() -> str:
    """Return the login name; empty if it is unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def somebody() -> str:
    """Return the login name, or a placeholder."""
    return login() or "somebody"

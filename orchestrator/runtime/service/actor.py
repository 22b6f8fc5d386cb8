"""Who runs this process: the name in records of what somebody asked for without saying who."""

from __future__ import annotations

import getpass


def login() -> str:
    """Return the login name; empty where the system knows none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def somebody() -> str:
    """Return the login name, or a word that stands for it."""
    return login() or "somebody"

"""Who gives a command: what --by says, else the login name."""

from __future__ import annotations

from orchestrator.errors import ConfigError
from orchestrator.runtime.service.actor import login


def actor_name(given: str | None) -> str:
    """Return who asks; empty where nobody is named and the system knows no name."""
    return (login() if given is None else given).strip()


def known_actor(given: str | None, does: str) -> str:
    """Return who asks. Raises ConfigError where nobody is named; `does` says what for, as in `orders`."""
    name = actor_name(given)
    if not name:
        raise ConfigError(f"it must be known who {does} this: give --by NAME")
    return name

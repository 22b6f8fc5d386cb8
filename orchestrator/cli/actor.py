"""The actor of a command: the value of --by, else the login name."""

from __future__ import annotations

from orchestrator.errors import ConfigError
from orchestrator.runtime.service.answer import login


def actor_name(given: str | None) -> str:
    """Return the actor of a request; empty if no name is given and the system has none."""
    return (login() if given is None else given).strip()


def known_actor(given: str | None, does: str) -> str:
    """Return the actor. Raises ConfigError if there is no name; its message uses the verb `does`, such as `orders`."""
    name = actor_name(given)
    if not name:
        raise ConfigError(f"it must be known who {does} this: give --by NAME")
    return name

"""Remove API keys from errors: servers repeat the key in answers of any status."""

from __future__ import annotations

from orchestrator.errors import LLMError

_SHORTEST_KEY = 10


def mask_key(error: LLMError, secret: str) -> LLMError:
    """Remove the API key from an error's texts and return the error."""
    error.args = tuple(_masked(one, secret) if isinstance(one, str) else one for one in error.args)
    return error


def _masked(message: str, secret: str) -> str:
    """Mask a key, also one that was cut in the middle.

    A key of a few characters is not masked: it would occur everywhere.
    """
    if len(secret) < _SHORTEST_KEY:
        return message
    shown: list[str] = []
    rest = message
    while (at := rest.find(secret[:_SHORTEST_KEY])) >= 0:
        length = next(n for n in range(len(secret), 0, -1) if rest.startswith(secret[:n], at))
        shown += [rest[:at], "**********"]
        rest = rest[at + length :]
    return "".join((*shown, rest))

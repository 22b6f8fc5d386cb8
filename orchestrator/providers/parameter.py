"""Check the names of a request's parameters before anything is sent.

A name that the SDK of the vendor does not know is an error: providers ignore a misspelt parameter, or refuse the
request in words of their own. Parameters that only another server knows, or that are newer than the SDK, belong into
`extra_body`, as in the SDKs. To pass every unknown name was rejected: `temprature=0` then works and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

from orchestrator.errors import ConfigError

EXTRA: Final = "extra_body"
"""Parameter with the members of the body that the SDK does not know."""


def check_names(params: Mapping[str, Any], known: Collection[str], vendor: str) -> None:
    """Raise ConfigError for a parameter that `vendor` does not have."""
    for name in params:
        if name in known or name == EXTRA:
            continue
        near = get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ";"
        raise ConfigError(
            f"{name!r} is no parameter of {vendor}{meant} parameters that only your server knows go into {EXTRA!r}"
        )
    if not isinstance(params.get(EXTRA, {}), Mapping):
        raise ConfigError(
            f"{EXTRA} is {params[EXTRA]!r:.60}; possible: an object with members of the request's body"
        )


def with_extra(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as members of a body: those in `extra_body` beside the others."""
    plain = {name: value for name, value in params.items() if name != EXTRA}
    return {**plain, **params.get(EXTRA, {})}

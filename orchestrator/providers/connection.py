"""Checks that all vendors' models share, before anything is sent: name, address, key, time."""

from __future__ import annotations

import math
import os
from urllib.parse import urlsplit

from pydantic import SecretStr

from orchestrator.errors import ConfigError, see_guide

CONNECT_SECONDS = 5.0
"""Maximum seconds to connect, even if an answer may take longer."""
_NO_KEY = "none"
"""Sent to a compatible server without a known key: the SDKs require one, local servers ignore it."""


def check_model(model: str, structured: str, timeout: float, base_url: str | None) -> None:
    """Raise ConfigError for arguments that no model can have."""
    if not model:
        raise ConfigError("the model has no name")
    if structured not in ("native", "prompt"):
        raise ConfigError(f"structured is {structured!r}; possible: native, prompt")
    if not (math.isfinite(timeout) and timeout > 0):
        raise ConfigError(f"timeout is {timeout!r}; possible: seconds, more than 0")
    if base_url is not None:
        check_address(base_url)


def check_address(base_url: str) -> None:
    """Raise ConfigError unless the text is the address of a server."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"base_url is {base_url!r}; possible: an address that begins with http:// or https://"
        )


def key_of(vendor: str, given: str | SecretStr | None, base_url: str | None) -> SecretStr:
    """Return the API key: the given one, else that of the vendor's variable. Raises ConfigError.

    An address that is not the vendor's own needs no key.
    """
    prefix = vendor.upper()
    found = given if given is not None else os.environ.get(f"{prefix}_API_KEY") or None
    key = found.get_secret_value() if isinstance(found, SecretStr) else found
    if key is None:
        if not (base_url or os.environ.get(f"{prefix}_BASE_URL")):
            raise ConfigError(
                f"there is no API key for {vendor}: give api_key, or set {prefix}_API_KEY; {see_guide('providers')}"
            )
        return SecretStr(_NO_KEY)
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("the API key is empty, or has characters that no HTTP header can have")
    return SecretStr(key)

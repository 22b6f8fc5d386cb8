"""Removes secrets from settings before they are printed."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import SecretStr

_SECRET = re.compile(r"(?:key|secret|password|token)$", re.IGNORECASE)
_USER_INFO = re.compile(r":/{1,2}[^/@\s]+@")  # a Path turns two slashes into one
_REDACTED = "[redacted]"


def redacted(name: str, value: object) -> object:
    """Return the value without secrets: values of secret type or name, and passwords of addresses, are replaced."""
    if isinstance(value, SecretStr) or (value is not None and _SECRET.search(name)):
        return _REDACTED
    return _USER_INFO.sub(f"://{_REDACTED}@", value) if isinstance(value, str) else value


def bare(address: str) -> str:
    """Return an address without the user name and password in it."""
    try:
        parts = urlsplit(address)
    except ValueError:  # not an address: the code that uses it reports this
        return address
    _, mark, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=place).geturl() if mark else address

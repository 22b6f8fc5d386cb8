"""Removes secrets from settings before they are printed."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_SECRET = re.compile(r"(?:key|secret|password|token)$", re.IGNORECASE)
_USER_INFO = re.compile(r":/{1,2}[^/@\s]+@")  # a Path turns two slashes into one
_QUERY = re.compile(r"(https?:/{1,2}[^?\s]*\?)\S+", re.IGNORECASE)
_REDACTED = "[redacted]"


def redacted(name: str, value: object) -> object:
    """Return the value without secrets.

    Values of secret type or name are replaced, and the user, the password and the query of addresses.
    """
    from pydantic import SecretStr  # loaded with the settings

    if isinstance(value, SecretStr) or (value is not None and _SECRET.search(name)):
        return _REDACTED
    if not isinstance(value, str):
        return value
    return _QUERY.sub(rf"\1{_REDACTED}", _USER_INFO.sub(f"://{_REDACTED}@", value))


def bare(address: str) -> str:
    """Return an address without its user name, password, query and fragment, which may be secret."""
    try:
        parts = urlsplit(address)
    except ValueError:  # not an address: the code that uses it reports this
        return address
    place = parts.netloc.rpartition("@")[2]
    secret = "@" in parts.netloc or parts.query or parts.fragment
    return parts._replace(netloc=place, query="", fragment="").geturl() if secret else address

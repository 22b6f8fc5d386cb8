"""Where this library was installed from: a project finds it on a package index, or in its folder `wheels`."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

NAME = "fsm-orchestrator"


def wheel_command() -> str | None:
    """Return the command that puts a wheel of this library into a project; None if an index has the library."""
    with suppress(PackageNotFoundError):
        return command_for(distribution(NAME).read_text("direct_url.json"))
    return None


def command_for(direct_url: str | None) -> str | None:
    """Return the command for the content of `direct_url.json`, which pip writes if it does not use an index."""
    url = urlsplit(json.loads(direct_url).get("url", "")) if direct_url else None
    if url is None or url.scheme != "file":
        return None
    return f"pip wheel --no-deps -w wheels {shlex.quote(unquote(url.path))}"

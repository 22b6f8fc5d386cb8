"""`orchestrator config show`: the effective settings and the source of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.lazy_group import CommandEntry, LazyGroup
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.redaction import redacted
from orchestrator.cli.spread import spread_options
from orchestrator.cli.trust.consent import DEFAULT_FILE, is_trusted_file, settings_file
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.limiter import RateLimit
from orchestrator.settings import PREFIX, Settings, build

_SECTIONS: Mapping[str, type] = {"limits": Limits, "retry": RetryPolicy, "rate_limit": RateLimit}


class Setting(NamedTuple):
    """One effective value."""

    name: str
    value: object
    source: str
    """The environment variable, the file, or `default`."""


@spread_options
def show_settings(*, as_json: given.Json = False) -> int:
    """Print the effective settings and the source of each.

    Secrets are redacted.
    """
    # They are only printed, not used: those of an untrusted file are included, and marked.
    file = settings_file()
    members = {} if file is None else file.members
    trusted = file is None or is_trusted_file(file)
    settings = [
        one if trusted or one.source != DEFAULT_FILE else one._replace(source=f"{DEFAULT_FILE} (not trusted)")
        for one in _effective(Settings.load(members), members)
    ]
    if as_json:
        say_json({one.name: {"value": one.value, "source": one.source} for one in settings})
        return Exit.COMPLETED
    width = max(len(one.name) for one in settings)
    for name, value, source in settings:
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        say(f"{name:<{width}}  {shown(text):<24}  {source}")
    return Exit.COMPLETED


def _effective(settings: Settings, written: Mapping[str, Any]) -> Iterator[Setting]:
    for name in type(settings).model_fields:
        given = getattr(settings, name)
        kind = _SECTIONS.get(name)
        if isinstance(given, dict) and kind is None:
            for member, value in given.items():
                full = f"{name}.{member}"
                yield Setting(full, redacted(full, value), _source(name, member, written))
            continue
        if kind is None:
            value = None if given is None else str(given)
            yield Setting(name, redacted(name, value), _source(name, None, written))
            continue
        built: object = build(kind, given, name)
        for item in fields(kind):
            full, value = f"{name}.{item.name}", getattr(built, item.name)
            source = _source(name, item.name, written) if item.name in given else "default"
            yield Setting(full, redacted(full, list(value) if isinstance(value, tuple) else value), source)


def _source(name: str, member: str | None, written: Mapping[str, Any]) -> str:
    """Return the source of a value; the environment overrides the file."""
    options = f"{PREFIX}{name}__{member}" if member else f"{PREFIX}{name}"
    for variable in os.environ:
        parts = variable.upper()
        if parts == options.upper() or (member and parts.startswith(f"{options.upper()}__")):
            return variable
    whole = f"{PREFIX}{name}".upper()
    if member is None:
        return DEFAULT_FILE if name in written else "default"
    if member not in written.get(name, {}):
        return whole
    try:  # a section may be given as JSON in one variable
        in_variable = member in json.loads(os.environ.get(whole) or "{}")
    except (ValueError, TypeError):
        in_variable = False
    return whole if in_variable else DEFAULT_FILE


group = LazyGroup(
    {"show": CommandEntry("config:show_settings", "Print the effective settings and the source of each.")},
    help="Settings of this process.",
)

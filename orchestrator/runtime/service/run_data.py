"""Data of the host about a run: metadata and tags, stored with the run and never logged.

Both are bounded, because every listing of runs can return the tags, and each process that resumes the run reads both.
A child run has the metadata and tags of its parent; the name and version of an agent are its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import orjson

from orchestrator.errors import ConfigError
from orchestrator.machines.plain import plain_json

METADATA_BYTES: Final = 16_384
"""Maximum size of metadata as JSON."""
MOST_TAGS: Final = 32
LONGEST_TAG: Final = 256
"""Maximum characters of the name of a tag, and of its value."""
LONGEST_NAME: Final = 100
"""Maximum characters of the name of an agent, and of its version."""
SHARED: Final = ("metadata", "tags")
"""Data that child runs have from their parent."""
OPTIONS: Final = "options"
"""What a run has in place of its agent's: see `runtime.llm_loop.run_options`."""
KEYS: Final = ("agent", "agent_version", *SHARED, OPTIONS)
"""Members of the `created` record that a host gives."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:+-]{{0,{LONGEST_NAME - 1}}}")


def agent_data(name: object, version: object) -> dict[str, Any]:
    """Return the data about an agent for its runs. Raises ConfigError for an invalid name or version."""
    for what, value in (("name", name), ("version", version)):
        if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
            raise ConfigError(
                f"{what} is {_shown(value)}; give 1 to {LONGEST_NAME} letters, digits and any of _ . : + -, "
                "starting with a letter or digit"
            )
    return _given(agent=name, agent_version=version)


def host_data(machine: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the data of a host in the options of a run of a machine that has no further options.

    Raises ConfigError.
    """
    if unknown := sorted(options.keys() - set(SHARED)):
        raise ConfigError(f"a run of {machine} has no option {', '.join(unknown)}; leave it out")
    return run_data(options.get("metadata"), options.get("tags"))


def run_data(metadata: object, tags: object) -> dict[str, Any]:
    """Return the data of a host about a run, as JSON types. Raises ConfigError for data that cannot be stored."""
    if metadata is None and tags is None:
        return {}
    checked = None if metadata is None else checked_json("metadata", metadata)
    return _given(metadata=checked, tags=_checked_tags(tags))


def stored_data(created: Mapping[str, Any], keys: tuple[str, ...] = KEYS) -> dict[str, Any]:
    """Return the data of a host in the `created` record of a run."""
    return {key: created[key] for key in keys if created.get(key) is not None}


def _given(**data: Any) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


def checked_json(what: str, value: object) -> dict[str, Any]:
    """Return a dict as JSON types; `what` is its name. Raises ConfigError for one that cannot be stored."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{what} is {_shown(value)}; give a dict with text keys and JSON values")
    try:
        plain: dict[str, Any] = plain_json(value)
    except ValueError as error:
        raise ConfigError(f"{what} cannot be stored as JSON: {error}; give JSON values only") from None
    size = len(orjson.dumps(plain))
    if size > METADATA_BYTES:
        raise ConfigError(
            f"{what} has {size:,} bytes as JSON; give at most {METADATA_BYTES:,}, and keep the rest elsewhere"
        )
    return plain


def _checked_tags(tags: object) -> dict[str, str] | None:
    if tags is None:
        return None
    if not isinstance(tags, Mapping):
        raise ConfigError(
            f"tags is {_shown(tags)}; give a dict of text to text, for example tags={{'team': 'ops'}}"
        )
    if len(tags) > MOST_TAGS:
        raise ConfigError(f"there are {len(tags)} tags; give at most {MOST_TAGS}")
    for name, value in tags.items():
        if not (_is_tag(name) and name) or not _is_tag(value):
            raise ConfigError(
                f"tag {_shown(name)} has the value {_shown(value)}; name and value must be printable text of at most "
                f"{LONGEST_TAG} characters"
            )
    return dict(tags)


def _is_tag(text: object) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_TAG and text.isprintable()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"


def new_id() -> str:
    """Return a random run id."""
    return secrets.token_hex(16)

"""Elicitations of a server as requests to a person, and the answers in the form of the protocol.

Text and form come from outside: texts are cleaned and bounded, a form has flat fields only, and an address is shown
and never opened. What does not fit is refused, with a reason for the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError
from orchestrator.providers.mcp.offer import clean
from orchestrator.tools.input_request import InputAnswer, InputRequest

if TYPE_CHECKING:
    from mcp_types import ElicitRequestParams, ElicitResult

_MESSAGE_CHARS: Final = 2_000
_TEXT_CHARS: Final = 200
_URL_CHARS: Final = 2_000
_NAME_CHARS: Final = 64
_FIELDS: Final = 50
_SCHEMA_BYTES: Final = 32 * 1024
_KINDS: Final = frozenset(("string", "number", "integer", "boolean", "array"))
_TEXTS: Final = frozenset(("title", "description"))
_MEMBERS: Final = frozenset(
    (
        *_TEXTS,
        *("type", "enum", "oneOf", "anyOf", "items", "default", "format"),
        *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"),
    )
)
"""Members of a field that the specification has."""


class BadElicitation(ValueError):
    """An elicitation that no person is asked; the message is a clause for the server."""


def input_request(server: str, params: ElicitRequestParams) -> InputRequest:
    """Return an elicitation as a request to a person, with the name of its server. Raises BadElicitation."""
    message = f"{server} asks: {clean(params.message, _MESSAGE_CHARS)}"
    if params.mode == "url":
        return InputRequest(message, url=_address(params.url))
    try:
        return InputRequest(message, _form(params.requested_schema))
    except ConfigError as error:
        raise BadElicitation(str(error)) from error


def elicit_result(answer: InputAnswer) -> ElicitResult:
    """Return the answer of a person in the form of the protocol."""
    from mcp_types import ElicitResult

    content: Any = dict(answer.content) if answer.action == "accept" else None
    return ElicitResult(action=answer.action, content=content)


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.username
    except ValueError:
        usable = False
    if not usable or len(url) > _URL_CHARS or clean(url, _URL_CHARS) != url or not url.isascii():
        raise BadElicitation(
            f"its address must start with https:// or http:// and a host, in ASCII, with at most {_URL_CHARS:,} "
            "characters and without a user"
        )
    return url


def _form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form with clean texts and the known members only. Raises BadElicitation."""
    fields = schema.get("properties", {})
    required = schema.get("required", [])
    if schema.get("type") != "object" or not isinstance(fields, dict) or not isinstance(required, list):
        raise BadElicitation("its schema must describe an object with properties")
    if len(fields) > _FIELDS or len(json.dumps(schema)) > _SCHEMA_BYTES:
        raise BadElicitation(f"its form is too large: at most {_FIELDS} fields and {_SCHEMA_BYTES:,} bytes")
    names = [name for name in required if name in fields]
    return {
        "type": "object",
        "properties": {_name(name): _field(name, about) for name, about in fields.items()},
        **({"required": names} if names else {}),
    }


def _name(name: str) -> str:
    if not name or clean(name, _NAME_CHARS) != name:
        raise BadElicitation(f"the name of a field must be visible text of at most {_NAME_CHARS} characters")
    return name


def _field(name: str, about: object) -> dict[str, Any]:
    if not isinstance(about, dict) or about.get("type", "string") not in _KINDS:
        raise BadElicitation(f"field {name!r} must be text, a number, a boolean, or a list of choices")
    items = about.get("items", {})
    if not isinstance(items, dict) or items.keys() & {"properties", "items"}:
        raise BadElicitation(f"field {name!r} must be a list of choices, without other fields in it")
    return {
        key: clean(value, _TEXT_CHARS) if key in _TEXTS and isinstance(value, str) else value
        for key, value in about.items()
        if key in _MEMBERS
    }

"""Content parts of messages and tool results: text, images, files and audio.

A part has the form of OpenAI's chat API, in which it is journalled; the adapters translate it. A tool that returns a
part, or a list of parts and texts, gives them to the model as they are. Bytes become base64 within the part.

    message = Message("user", [text_part("What is this?"), image_part(png, "image/png")])
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

from orchestrator.errors import ConfigError

PartKind: TypeAlias = Literal["text", "image", "file", "audio"]
KINDS: Final[tuple[PartKind, ...]] = ("text", "image", "file", "audio")

CITATIONS: Final = frozenset(("reference", "tool_reference"))
"""Types of the parts that Mistral puts inside a sentence, and no other API accepts."""
OPAQUE: Final = frozenset(("reasoning", "thinking", "redacted_thinking", "pydantic_ai", "openai_chat"))
"""Types of the parts that only the API that made them accepts back; the adapters of other vendors leave them out."""

_TYPES: Mapping[str, PartKind] = {
    "text": "text",
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "input_audio": "audio",
}
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
_SHOWN = 200


class ContentPart(dict[str, Any]):
    """One part, a dict in the form of OpenAI's chat API; made by the functions of this module."""


def text_part(text: str) -> ContentPart:
    """Return a part of text."""
    return ContentPart(type="text", text=text)


def image_part(source: bytes | str, media_type: str | None = None) -> ContentPart:
    """Return an image: bytes with their media type (`image/png`), or its address. Raises ConfigError."""
    return ContentPart(type="image_url", image_url={"url": _url(source, media_type)})


def file_part(source: bytes, media_type: str, filename: str) -> ContentPart:
    """Return a file: its bytes, media type (`application/pdf`) and name. Raises ConfigError."""
    return ContentPart(type="file", file={"file_data": _url(source, media_type), "filename": filename})


def audio_part(source: bytes, encoding: Literal["wav", "mp3"]) -> ContentPart:
    """Return a recording: its bytes and their encoding."""
    return ContentPart(
        type="input_audio", input_audio={"data": b64encode(source).decode(), "format": encoding}
    )


def kind_of(part: Mapping[str, Any]) -> PartKind | None:
    """Return the kind of a part in any vendor's form; None for other parts, such as reasoning."""
    return _TYPES.get(str(part.get("type")))


def data_of(url: str) -> tuple[str, str] | None:
    """Return media type and base64 text of a data URL; None for any other text."""
    found = _DATA_URL.fullmatch(url)
    return None if found is None else (found[1], found[2])


def returned_parts(value: object) -> list[ContentPart]:
    """Return the parts that a tool returned: a part, or a list of texts and at least one part. Else nothing."""
    if isinstance(value, ContentPart):
        return [value]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str | ContentPart) for one in value):
        return []
    if not any(isinstance(one, ContentPart) for one in value):
        return []
    return [text_part(one) if isinstance(one, str) else one for one in value]


def described(part: Mapping[str, Any]) -> str:
    """Return the text of a text part; for another part its kind, type, size and digest, so that changes show."""
    kind = kind_of(part)
    if kind == "text":
        return str(part["text"])
    body = part[part["type"]]
    source = str(body.get("url") or body.get("file_data") or body.get("data") or "")
    data = data_of(source)
    if data is None and kind != "audio":
        return f"[{kind} {source[:_SHOWN]}]"
    media, encoded = data or (f"audio/{body.get('format')}", source)
    content = b64decode(encoded)
    name = f" {body['filename']}" if "filename" in body else ""
    return f"[{kind}{name} {media}, {len(content):,} bytes, sha256 {sha256(content).hexdigest()[:16]}]"


def _url(source: bytes | str, media_type: str | None) -> str:
    if isinstance(source, str):
        return source
    if media_type is None or not _MEDIA_TYPE.fullmatch(media_type):
        raise ConfigError(f"media_type is {media_type!r}; bytes need one, for example 'image/png'")
    return f"data:{media_type};base64,{b64encode(source).decode()}"

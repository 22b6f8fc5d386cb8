"""The protocol Converse of Amazon Bedrock, whose streams are frames of `application/vnd.amazon.eventstream`.

A frame is: its length and the length of its headers (4 bytes each), their checksum, the headers, the payload, and a
checksum of everything before. A header is the length of its name in one byte, the name, the type 7 (text) in one byte,
the length of the value in two bytes, and the value.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Mapping
from typing import Any

from tests.providers.loopback import Asked, Reply
from tests.providers.wire import Call, Said, Wire

_USAGE = {
    "inputTokens": 12,
    "cacheReadInputTokens": 5,
    "cacheWriteInputTokens": 3,
    "outputTokens": 7,
    "totalTokens": 27,
}


def frame(kind: str, payload: Mapping[str, Any], *, message: str = "event") -> bytes:
    """Return one frame: an event, or an exception with `message="exception"`."""
    names = {f":{message}-type": kind, ":content-type": "application/json", ":message-type": message}
    headers = b"".join(_header(name, value) for name, value in names.items())
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    start = prelude + struct.pack(">I", crc32(prelude)) + headers + body
    return start + struct.pack(">I", crc32(start))


def _header(name: str, value: str) -> bytes:
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value)) + value.encode()


def frames(*chunks: bytes) -> Reply:
    """Return an answer of these frames."""
    return Reply(200, {"content-type": "application/vnd.amazon.eventstream"}, chunks)


def _stop_reason(said: Said) -> str:
    return "tool_use" if isinstance(said, Call) else "end_turn"


def _converse(said: Said) -> Any:
    block: dict[str, Any] = {"text": said}
    if isinstance(said, Call):
        block = {"toolUse": {"toolUseId": said.id, "name": said.tool, "input": said.arguments}}
    message = {"role": "assistant", "content": [block]}
    head = {"output": {"message": message}, "stopReason": _stop_reason(said)}
    return {**head, "usage": _USAGE, "metrics": {"latencyMs": 1}}


def _converse_stream(said: Said) -> Reply:
    at = {"contentBlockIndex": 0}
    opened = []
    if isinstance(said, Call):
        start = {"toolUse": {"toolUseId": said.id, "name": said.tool}}
        opened = [frame("contentBlockStart", {"start": start, **at})]
        whole = json.dumps(said.arguments)
        halves: list[Any] = [{"toolUse": {"input": half}} for half in (whole[:5], whole[5:])]
    else:
        halves = [{"text": half} for half in (said[: len(said) // 2], said[len(said) // 2 :])]
    return frames(
        frame("messageStart", {"role": "assistant"}),
        *opened,
        *(frame("contentBlockDelta", {"delta": half, **at}) for half in halves),
        frame("contentBlockStop", at),
        frame("messageStop", {"stopReason": _stop_reason(said)}),
        frame("metadata", {"usage": _USAGE, "metrics": {"latencyMs": 1}}),
    )


def _is_streamed(asked: Asked) -> bool:
    return asked.path.endswith("/converse-stream")


CONVERSE = Wire(_converse, _converse_stream, _is_streamed)

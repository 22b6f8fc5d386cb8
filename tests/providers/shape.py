"""A wire shape: what a server sends, and what becomes of it.

The rows are in `shapes_*.py`, the test is `test_wire_shapes.py`. A shape is sent to a run whose server answers every
further request like a server of that family. A run counts 1 for a token in and 10 for a token out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from orchestrator.llm.message import Response, Usage
from tests.providers.exchange import Failed

FURTHER = 90.0
"""Cost of each further answer."""
COST = 23.0
"""Cost of an answer that reports USAGE."""
USAGE = Usage(3, 2)
UNREPORTED = None
"""Usage of an answer that reports none; the cost of the run is an estimate then."""
HELLO = Response("Hello there.", (), "stop", USAGE, "m")


class Shape(NamedTuple):
    """A row of the table."""

    answer: Response | Failed
    """What the model's adapter makes of the first answer."""
    stream: str | bytes = ""
    """The event stream; empty if the shape has none."""
    whole: str = ""
    """The body of an answer that is not streamed; empty if the shape has none."""
    family: str = "openai"
    """A name of `family.FAMILIES`."""
    requests: int = 1
    """Requests of the whole run."""
    cost: float | None = COST
    """Cost of the whole run, without that of an answer that failed after it began or whose usage is reported."""
    says: str = ""
    """Text of the server that the error has to repeat."""
    content_type: str = "text/event-stream"
    """Of the stream."""
    then: Literal["end", "closed", "reset"] = "end"
    """What the connection does after the stream."""


def failed(
    kind: str,
    stream: str | bytes = "",
    whole: str = "",
    says: str = "",
    *,
    status: int | None = None,
    retryable: bool = True,
    **more: Any,
) -> Shape:
    """Return the row of a failure: a run repeats the request once, or it ends."""
    counts = (2, FURTHER) if retryable else (1, None)
    return Shape(
        Failed(kind, status, None, retryable),
        stream,
        whole,
        says=says,
        **{"requests": counts[0], "cost": counts[1], **more},
    )


def event(body: object, name: object = "") -> str:
    """Return an event of a stream."""
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


# ---- chat completions ----

DONE = "data: [DONE]\n\n"
CHAT_USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chunk(delta: Mapping[str, Any] | str = "", finish: object = None, **more: Any) -> str:
    """Return a chunk of a completion: its delta, or the text of it."""
    said = {"content": delta} if isinstance(delta, str) else delta
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more})


END = event({"model": "m", "choices": [], "usage": CHAT_USAGE}) + DONE
"""The usage of a stream, and its end mark."""


def completion(message: Mapping[str, Any] | str, finish: object = "stop", **more: Any) -> str:
    """Return a whole completion: its message, or the text of it."""
    said = {"role": "assistant", "content": message} if isinstance(message, str) else message
    choice = {"index": 0, "message": said, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": CHAT_USAGE}
    return json.dumps({**body, **more}, ensure_ascii=False)


# ---- messages ----

MESSAGES_USAGE = {"input_tokens": 3, "output_tokens": 2}


def message_start(**more: Any) -> str:
    """Return the beginning of a streamed message."""
    head: dict[str, Any] = {"type": "message", "role": "assistant", "model": "m", "content": []}
    return event(
        {
            "type": "message_start",
            "message": {
                **head,
                "stop_reason": None,
                "usage": {"input_tokens": 3, "output_tokens": 1},
                **more,
            },
        },
        "message_start",
    )


def block(*deltas: str, index: object = 0, start: Mapping[str, Any] | None = None, stop: bool = True) -> str:
    """Return a block of text, or another one that starts so and whose deltas are pieces of its input."""
    kind, member = ("text_delta", "text") if start is None else ("input_json_delta", "partial_json")
    events = [
        {
            "type": "content_block_start",
            "index": index,
            "content_block": start or {"type": "text", "text": ""},
        },
        *(
            {"type": "content_block_delta", "index": index, "delta": {"type": kind, member: one}}
            for one in deltas
        ),
        *([{"type": "content_block_stop", "index": index}] if stop else []),
    ]
    return "".join(event(one, one["type"]) for one in events)


def message_delta(stop: object = "end_turn") -> str:
    """Return the end of a message with its stop reason and usage."""
    body = {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 2},
    }
    return event(body, "message_delta")


STOP = event({"type": "message_stop"}, "message_stop")


def message(*content: Mapping[str, Any], stop: object = "end_turn", **more: Any) -> str:
    """Return a whole message."""
    head = {"type": "message", "role": "assistant", "model": "m"}
    return json.dumps({**head, "content": content, "stop_reason": stop, "usage": MESSAGES_USAGE, **more})


# ---- responses ----

RESPONSES_USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


def response(*output: Mapping[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """Return a whole response."""
    head = {"id": "r", "object": "response", "model": "m", "status": status, "error": None}
    return {**head, "incomplete_details": None, "output": output, "usage": RESPONSES_USAGE, **more}


def output_text(said: str) -> dict[str, Any]:
    """Return a message of a response."""
    parts = [{"type": "output_text", "text": said, "annotations": []}]
    return {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": parts}


def text_events(*deltas: str, index: int = 0) -> str:
    """Return the events of a message of a response, up to the last piece of its text."""
    item = {**output_text(""), "content": []}
    added = {"type": "response.output_item.added", "output_index": index, "item": item}
    where = {"type": "response.output_text.delta", "item_id": "i", "output_index": index, "content_index": 0}
    return event(added, added["type"]) + "".join(
        event({**where, "delta": one}, where["type"]) for one in deltas
    )


def response_end(body: Mapping[str, Any], kind: str = "response.completed") -> str:
    """Return the last event of a streamed response."""
    return event({"type": kind, "response": body}, kind)

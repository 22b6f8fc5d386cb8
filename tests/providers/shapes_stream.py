"""Wire shapes: how answers end, break and fail, and what content they have."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.llm.message import Response, ToolCall
from tests.providers.shape import (
    CHAT_USAGE,
    DONE,
    END,
    FURTHER,
    HELLO,
    STOP,
    UNREPORTED,
    USAGE,
    Shape,
    block,
    chunk,
    completion,
    event,
    failed,
    message,
    message_delta,
    message_start,
    output_text,
    response,
    response_end,
    text_events,
)

HALF = chunk("Hello ")
WHOLE = HALF + chunk("there.") + chunk("", "stop")
ANSWER = WHOLE + END
UNKNOWN = Response("Hello there.", (), None, USAGE, "m")
"""An answer whose server gives no finish reason."""
ERROR = {"error": {"code": 503, "message": "The backend is gone."}}
GONE: dict[str, Any] = {"says": "The backend is gone.", "status": 503}
PRETTY = json.dumps(ERROR, indent=2)
KEEP_ALIVE = "data:\n\n: keep-alive\n\ndata: \n\nevent: ping\ndata:\n\n"


def base_resp(code: int, said: str) -> dict[str, Any]:
    return {"choices": None, "base_resp": {"status_code": code, "status_msg": said}}


ENDS = {
    "bytes after the end mark": Shape(HELLO, ANSWER + 'data: {"cut\n\n'),
    "bytes after the end mark that are no text": Shape(HELLO, ANSWER.encode() + b"\xff\xfe\n\n"),
    "an error after the end mark": Shape(HELLO, ANSWER + event(ERROR)),
    "the end mark twice": Shape(HELLO, ANSWER + DONE),
    "the end mark without its line end": Shape(HELLO, ANSWER.rstrip()),
    "the end mark with spaces around it": Shape(HELLO, ANSWER.replace("[DONE]", " [DONE] ")),
    "the connection reset after the end mark": Shape(HELLO, ANSWER, then="reset"),
    "no end mark": Shape(HELLO, ANSWER.removesuffix(DONE)),
    "the connection reset instead of the end mark": Shape(HELLO, ANSWER.removesuffix(DONE), then="reset"),
    "the connection closed before the usage": Shape(
        Response("Hello there.", (), "stop", UNREPORTED, "m"),
        WHOLE,
        then="closed",
    ),
    "keep-alives without data": Shape(
        HELLO, KEEP_ALIVE + HALF + KEEP_ALIVE + chunk("there.", "stop") + KEEP_ALIVE + END
    ),
    "no finish reason": Shape(UNKNOWN, HALF + chunk("there.") + END, completion("Hello there.", None)),
    "an empty finish reason in each chunk": Shape(
        UNKNOWN, chunk("Hello ", "") + chunk("there.", "") + END, completion("Hello there.", "")
    ),
    "a finish reason that is the text null": Shape(
        HELLO, chunk("Hello ", "null") + chunk("there.", "null") + chunk("", "stop") + END
    ),
    "an empty finish reason after a real one": Shape(
        Response("Hello there.", (), "length", USAGE, "m"),
        WHOLE.replace("stop", "length") + chunk("", "") + END,
    ),
    "another finish reason after the end": Shape(HELLO, WHOLE + chunk("", "length") + END),
    "a finish reason in each chunk": Shape(HELLO, chunk("Hello ", "stop") + chunk("there.", "stop") + END),
    "the whole completion as an event": Shape(HELLO, "data: " + completion("Hello there.") + "\n\n" + DONE),
    "the whole completion after its pieces": Shape(
        HELLO, HALF + chunk("there.") + "data: " + completion("Hello there.") + "\n\n"
    ),
    "the whole completion in place of a stream": Shape(
        HELLO, completion("Hello there."), content_type="application/json"
    ),
    "the whole completion as text": Shape(HELLO, completion("Hello there."), content_type="text/plain"),
    "the whole completion under the type of a stream": Shape(HELLO, completion("Hello there.")),
    "the whole completion after white space": Shape(
        HELLO, " \n" * 20 + completion("Hello there."), content_type=""
    ),
    "a stream under the type of JSON": Shape(HELLO, ANSWER, content_type="application/json"),
    "a stream without a type": Shape(HELLO, ANSWER, content_type=""),
    "a stream that nobody asked for": Shape(HELLO, whole=ANSWER),
    "a completion after the white space of a server that is busy": Shape(
        HELLO, whole="\n" * 50 + completion("Hello there.")
    ),
    "a stream with a byte order mark": Shape(HELLO, "\ufeff" + ANSWER),
}
BREAKS = {
    "the connection closed in the text": failed("connection", HALF, then="closed"),
    "the stream ended in the text": failed("connection", HALF),
    "an empty finish reason, and a cut": failed("connection", chunk("Hello ", ""), then="closed"),
    "an empty finish reason, and an end without the mark": failed("connection", chunk("Hello ", "")),
    "text after the finish reason, and a cut": failed(
        "connection", chunk("Hello ", "stop") + chunk("there."), then="closed"
    ),
    "an event that was cut after the finish reason is not needed": Shape(
        Response("Hello there.", (), "stop", UNREPORTED, "m"), WHOLE + 'data: {"choices": [], "us'
    ),
    "white space and nothing else": failed("connection", "\n\n"),
    "a page under the type of a stream": failed(
        "malformed", "<html>504 Gateway Time-out</html>", "<html></html>"
    ),
    "words in place of an answer": failed(
        "malformed", "Upstream is gone.", "Upstream is gone.", "Upstream is gone.", content_type="text/plain"
    ),
    "words in a stream": failed("malformed", HALF + "data: Upstream is gone.\n\n", says="Upstream is gone."),
    "a stream that is half a JSON": failed(
        "malformed", completion("Hello there.")[:40], completion("Hello there.")[:40]
    ),
}
for word, kind in {
    "error": "server_error",
    "abort": "server_error",
    "network_error": "server_error",
    "insufficient_system_resource": "server_error",
    "MALFORMED_FUNCTION_CALL": "malformed",
    "function_call_filter: MALFORMED_FUNCTION_CALL": "malformed",
    "UNEXPECTED_TOOL_CALL": "malformed",
    "MALFORMED_RESPONSE": "malformed",
    "malformed_tool_use": "malformed",
}.items():
    BREAKS |= {
        f"the finish reason {word}": failed(
            kind, HALF + chunk("", word) + END, completion("Hello ", word), word
        ),
        f"the finish reason {word} without a text": failed(
            kind, chunk({"role": "assistant"}, word) + END, completion({"role": "assistant"}, word), word
        ),
    }
REASONS = {
    "an unknown finish reason": Shape(
        Response("Hello there.", (), "eclipse", USAGE, "m"),
        WHOLE.replace("stop", "eclipse") + END,
        completion("Hello there.", "eclipse"),
    ),
    "an unknown finish reason of a call": Shape(
        Response(None, (ToolCall("1", "add", "{}"),), "eclipse", USAGE, "m"),
        "",
        completion({"tool_calls": [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]}, "eclipse"),
        requests=2,
        cost=23 + FURTHER,
    ),
    "an unknown finish reason without a text": failed(
        "malformed", chunk({"role": "assistant"}, "eclipse") + END, completion("", "eclipse"), "eclipse"
    ),
    "an unknown finish reason after reasoning": failed(
        "malformed",
        chunk({"reasoning_content": "Hm."}, "eclipse") + END,
        completion({"content": " ", "reasoning_content": "Hm."}, "eclipse"),
        "eclipse",
    ),
}
ERRORS = {
    "an error in a stream": failed("server_error", HALF + event(ERROR), json.dumps(ERROR), **GONE),
    "an error in a stream, and the end mark": failed("server_error", HALF + event(ERROR) + DONE, **GONE),
    "an error after the finish reason": failed("server_error", WHOLE + event(ERROR) + DONE, **GONE),
    "an error by the name of the event": failed(
        "server_error", HALF + event({"message": "The backend is gone.", "code": 503}, "error"), **GONE
    ),
    "an error by the name of the event, in words": failed(
        "server_error", HALF + "event: error\ndata: The backend is gone.\n\n", says="The backend is gone."
    ),
    "an error as a field": failed(
        "context_length",
        'error: {"code":400,"message":"the request exceeds the available context size",'
        '"type":"exceed_context_size_error"}\n\n' + DONE,
        status=400,
        says="the request exceeds the available context size",
        retryable=False,
    ),
    "an error as a field after a text": failed(
        "server_error", HALF + "error: " + json.dumps(ERROR["error"]) + "\n\n", **GONE
    ),
    "an error without a field": failed("server_error", HALF + json.dumps(ERROR), **GONE),
    "an error without a field in lines": failed("server_error", HALF + PRETTY + "\n", **GONE),
    "an error without a field in lines, in a list": failed(
        "server_error", json.dumps([ERROR], indent=1), json.dumps([ERROR]), **GONE
    ),
    "an error in place of a stream": failed("server_error", PRETTY, content_type="application/json", **GONE),
    "an error in place of a stream, as text": failed(
        "server_error", PRETTY, content_type="text/plain", **GONE
    ),
    "an error in place of a stream, without a type": failed("server_error", PRETTY, content_type="", **GONE),
    "an error of Groq": failed(
        "server_error",
        HALF + event({"choices": [], "x_groq": {"id": "r", "error": "over_capacity"}}) + DONE,
        json.dumps({"choices": [], "x_groq": {"error": "over_capacity"}}),
        "over_capacity",
    ),
    "an error in a choice": failed(
        "server_error",
        HALF
        + chunk("", "stop").replace(
            '"delta"', '"error": {"code": 503, "message": "The backend is gone."}, "delta"'
        )
        + DONE,
        completion("Hello ").replace(
            '"message"', '"error": {"code": 503, "message": "The backend is gone."}, "message"'
        ),
        **GONE,
    ),
    "a rate limit in a choice": failed(
        "rate_limited",
        HALF
        + chunk("").replace('"delta"', '"error": {"code": 429, "message": "Slow down."}, "delta"')
        + DONE,
        says="Slow down.",
        status=429,
    ),
    "an error without its member": failed(
        "server_error",
        HALF + event({"message": "The backend is gone."}),
        '{"detail": "The backend is gone."}',
        "The backend is gone.",
    ),
    "an error in a list": failed(
        "server_error",
        HALF + event({"errors": [{"code": 7003, "message": "The backend is gone."}], "success": False}),
        '{"errors": [{"code": 7003, "message": "The backend is gone."}], "result": null}',
        "The backend is gone.",
    ),
    "a rate limit of MiniMax": failed(
        "rate_limited",
        HALF + event(base_resp(1002, "rate limit")),
        json.dumps(base_resp(1002, "rate limit")),
        "rate limit",
    ),
    "an empty account at MiniMax": failed(
        "rate_limited",
        event(base_resp(1008, "insufficient balance")),
        json.dumps(base_resp(1008, "insufficient balance")),
        "insufficient balance",
        retryable=False,
    ),
    "a failure of MiniMax": failed(
        "server_error",
        event(base_resp(1033, "system error")),
        json.dumps(base_resp(1033, "system error")),
        "system error",
    ),
    "no failure of MiniMax": Shape(
        HELLO,
        HALF + chunk("there.", "stop") + event(base_resp(0, "")) + END,
        completion("Hello there.", base_resp={"status_code": 0, "status_msg": ""}),
    ),
}

# ---- messages ----

MESSAGE = message_start() + block("Hello ", "there.") + message_delta() + STOP
GREETING = Response("Hello there.", (), "end_turn", USAGE, "m")
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded, sorry."}}
SORRY: dict[str, Any] = {"says": "Overloaded, sorry.", "family": "anthropic"}
OPEN = message_start() + block("Hello ", stop=False)
MESSAGES = {
    "a message": Shape(GREETING, MESSAGE, message({"type": "text", "text": "Hello there."}), "anthropic"),
    "a message, and the end mark": Shape(GREETING, MESSAGE + DONE, family="anthropic"),
    "a message, and bytes": Shape(GREETING, MESSAGE.encode() + b"data: {\xff\n\n", family="anthropic"),
    "a message with the end mark in place of its end": Shape(
        GREETING, MESSAGE.removesuffix(STOP) + DONE, family="anthropic"
    ),
    "a message without its end": Shape(
        GREETING, MESSAGE.removesuffix(STOP), family="anthropic", then="reset"
    ),
    "a message with the end mark and without a stop reason": Shape(
        Response("Hello there.", (), None, UNREPORTED, "m"),
        message_start() + block("Hello there.") + DONE,
        family="anthropic",
    ),
    "a message with keep-alives": Shape(
        GREETING,
        KEEP_ALIVE
        + message_start()
        + KEEP_ALIVE
        + block("Hello there.")
        + message_delta()
        + KEEP_ALIVE
        + STOP,
        family="anthropic",
    ),
    "a message with an empty stop reason later": Shape(
        Response("Hello there.", (), "max_tokens", USAGE, "m"),
        message_start()
        + block("Hello there.")
        + message_delta("max_tokens")
        + message_delta("")
        + message_delta(None)
        + STOP,
        family="anthropic",
    ),
    "a message whose stop reason comes first": failed(
        "connection", message_start(stop_reason="end_turn") + block("Hello "), family="anthropic"
    ),
    "a message with an empty stop reason, and a cut": failed(
        "connection",
        message_start(stop_reason="") + block("Hello ") + message_delta(""),
        family="anthropic",
        then="closed",
    ),
    "a message that was cut, and the end mark": failed("connection", OPEN + DONE, family="anthropic"),
    "a message that did not begin, and the end mark": failed(
        "connection", message_start() + DONE, family="anthropic"
    ),
    "an error in a message": failed(
        "server_error", OPEN + event(OVERLOADED, "error"), json.dumps(OVERLOADED), **SORRY
    ),
    "an error in a message, in words": failed(
        "server_error", OPEN + "event: error\ndata: Overloaded, sorry.\n\n", **SORRY
    ),
    "an error in a message as a field": failed(
        "server_error", OPEN + f"error: {json.dumps(OVERLOADED)}\n\n", **SORRY
    ),
    "an error in a message without a field": failed(
        "server_error", OPEN + json.dumps(OVERLOADED, indent=1), **SORRY
    ),
    "an error in place of a message, as text": failed(
        "server_error", json.dumps(OVERLOADED), content_type="text/plain", **SORRY
    ),
    "an error of MiniMax in place of a message": failed(
        "rate_limited",
        event(base_resp(1002, "rate limit")),
        json.dumps(base_resp(1002, "rate limit")),
        "rate limit",
        family="anthropic",
    ),
    "a message that failed": failed(
        "malformed",
        message_start() + block("Hello ") + message_delta("malformed_tool_use") + STOP,
        message({"type": "text", "text": "Hello "}, stop="malformed_tool_use"),
        "malformed_tool_use",
        family="anthropic",
    ),
    "an unknown stop reason without a text": failed(
        "malformed",
        message_start() + message_delta("eclipse") + STOP,
        message(stop="eclipse"),
        "eclipse",
        family="anthropic",
    ),
    "an unknown stop reason": Shape(
        Response("Hello there.", (), "eclipse", USAGE, "m"),
        message_start() + block("Hello there.") + message_delta("eclipse") + STOP,
        message({"type": "text", "text": "Hello there."}, stop="eclipse"),
        "anthropic",
    ),
    "a whole message in place of a stream": Shape(
        GREETING,
        message({"type": "text", "text": "Hello there."}),
        family="anthropic",
        content_type="text/plain",
    ),
}

# ---- responses ----

RESPONSE = response(output_text("Hello there."))
EVENTS = text_events("Hello ", "there.")
RESPONDED = Response("Hello there.", (), "completed", USAGE, "m")
RESPONSES = {
    "a response": Shape(RESPONDED, EVENTS + response_end(RESPONSE), json.dumps(RESPONSE), "openai-responses"),
    "a response, and the end mark": Shape(
        RESPONDED, EVENTS + response_end(RESPONSE) + DONE, family="openai-responses"
    ),
    "a response, and bytes": Shape(
        RESPONDED, (EVENTS + response_end(RESPONSE)).encode() + b"data: {\xff\n\n", family="openai-responses"
    ),
    "a response, and a reset": Shape(
        RESPONDED, EVENTS + response_end(RESPONSE), family="openai-responses", then="reset"
    ),
    "a response with keep-alives": Shape(
        RESPONDED, KEEP_ALIVE + EVENTS + KEEP_ALIVE + response_end(RESPONSE), family="openai-responses"
    ),
    "a whole response in place of a stream": Shape(
        RESPONDED, json.dumps(RESPONSE), family="openai-responses", content_type="text/plain"
    ),
    "a response that was cut": failed("connection", EVENTS, family="openai-responses", then="closed"),
    "a response that was cut, and the end mark": failed(
        "connection", EVENTS + DONE, family="openai-responses"
    ),
    "a response that failed": failed(
        "server_error",
        EVENTS
        + response_end(
            response(status="failed", error={"code": "server_error", "message": "It broke."}),
            "response.failed",
        ),
        json.dumps(response(status="failed", error={"code": "server_error", "message": "It broke."})),
        "It broke.",
        family="openai-responses",
    ),
    "an error in a response": failed(
        "rate_limited",
        EVENTS + event({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."}, "error"),
        json.dumps({"error": {"code": "rate_limit_exceeded", "message": "Slow down."}}),
        "Slow down.",
        family="openai-responses",
    ),
    "an error in a response as a field": failed(
        "server_error", EVENTS + f"error: {json.dumps(ERROR)}\n\n", family="openai-responses", **GONE
    ),
    "an error in a response without a field": failed(
        "server_error", EVENTS + PRETTY, family="openai-responses", **GONE
    ),
    "an error in place of a response, as text": failed(
        "server_error", PRETTY, content_type="text/plain", family="openai-responses", **GONE
    ),
    "an unknown reason of an empty response": failed(
        "malformed",
        response_end(
            response(status="incomplete", incomplete_details={"reason": "eclipse"}), "response.incomplete"
        ),
        json.dumps(response(status="incomplete", incomplete_details={"reason": "eclipse"})),
        "eclipse",
        family="openai-responses",
    ),
}

# ---- content ----

REFERENCE = {"type": "reference", "reference_ids": [1, "a"]}
STRANGE = {"type": "hologram", "data": 7}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


CITED = [said("Oslo is the capital"), REFERENCE, said(" of Norway.")]
CONTENT = {
    "a reference inside a sentence": Shape(
        Response(CITED, (), "stop", USAGE, "m"),
        chunk("Oslo is ")
        + chunk("the capital")
        + chunk({"content": [REFERENCE]})
        + chunk(" of ")
        + chunk("Norway.", "stop")
        + END,
        completion({"content": CITED}),
    ),
    "a reference in one delta with its text": Shape(
        Response(CITED, (), "stop", USAGE, "m"),
        chunk({"content": [said("Oslo is the capital"), REFERENCE]})
        + chunk({"content": [said(" of Norway.")]}, "stop")
        + END,
        completion({"content": ["Oslo is the capital", REFERENCE, said(" of "), said("Norway.")]}),
    ),
    "a part that nobody knows": Shape(
        Response([said("Oslo"), STRANGE], (), "stop", USAGE, "m"),
        chunk("Os") + chunk({"content": [said("lo"), STRANGE, 5, None]}, "stop") + END,
        completion({"content": [said("Oslo"), STRANGE, 5, said("")]}),
    ),
    "thinking, text and a reference": Shape(
        Response(CITED, (), "stop", USAGE, "m", reasoning="Norway."),
        chunk({"content": [{"type": "thinking", "thinking": [said("Norway.")]}]})
        + chunk({"content": CITED}, "stop")
        + END,
        completion({"content": [{"type": "thinking", "thinking": [said("Norway.")]}, *CITED]}),
    ),
    "texts in a list": Shape(
        HELLO,
        chunk({"content": [said("Hello "), said("the")]}) + chunk({"content": ["re."]}, "stop") + END,
        completion({"content": [said("Hello "), "there."]}),
    ),
    "an unknown part of a message": Shape(
        Response([said("Hello there."), {"type": "hologram", "data": 7}], (), "end_turn", USAGE, "m"),
        message_start() + block("Hello ", "there.") + block(index=1, start=STRANGE) + message_delta() + STOP,
        message(said("Hello there."), STRANGE),
        "anthropic",
    ),
    "an unknown part of a response": Shape(
        RESPONDED,
        EVENTS
        + response_end(
            response(
                {**output_text("Hello there."), "content": [*output_text("Hello there.")["content"], STRANGE]}
            )
        ),
        json.dumps(
            response(
                {**output_text(""), "content": [STRANGE, *output_text("Hello there.")["content"]]}, STRANGE
            )
        ),
        "openai-responses",
    ),
}

# ---- models of pydantic-ai ----


def gemini(finish: str, *parts: Any) -> dict[str, Any]:
    """Return an answer of Gemini, which is also the only event of its stream."""
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}


def gemini_failed(kind: str, finish: str, *parts: Any) -> Shape:
    body = gemini(finish, *parts)
    return failed(kind, event(body), json.dumps(body), finish, family="pydantic-ai:google")


def library_chat(finish: str, said: str) -> tuple[str, str]:
    """Return a completion with the members that the library requires, streamed and whole."""
    more = {"created": 1_700_000_000}
    head = {"id": "c", "object": "chat.completion.chunk", "model": "m", **more}
    end = event({**head, "choices": [], "usage": CHAT_USAGE})
    return chunk(said, **more) + chunk("", finish, **more) + end + DONE, completion(said, finish, **more)


LIBRARY_CITED = [
    said("Oslo is the capital"),
    {"type": "reference", "reference_ids": [1]},
    said(" of Norway."),
]
LIBRARY = {
    **{
        f"Gemini's {finish}": gemini_failed("malformed", finish, *parts)
        for finish in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS")
        for parts in ((), ({"text": "Hello "},))
    },
    "Gemini's OTHER without a text": gemini_failed("malformed", "OTHER"),
    "Gemini's OTHER": Shape(
        Response("Hello there.", (), "OTHER", USAGE, "m"),
        event(gemini("OTHER", {"text": "Hello there."})),
        json.dumps(gemini("OTHER", {"text": "Hello there."})),
        "pydantic-ai:google",
    ),
    "an unknown finish reason in a library": Shape(
        Response("Hello there.", (), "eclipse", USAGE, "m"),
        *library_chat("eclipse", "Hello there."),
        "pydantic-ai:openai-chat",
    ),
    "an unknown finish reason without a text in a library": failed(
        "malformed", *library_chat("eclipse", ""), "eclipse", family="pydantic-ai:openai-chat"
    ),
    "a malformed call in a library": failed(
        "malformed",
        *library_chat("function_call_filter: MALFORMED_FUNCTION_CALL", ""),
        "MALFORMED_FUNCTION_CALL",
        family="pydantic-ai:openai-chat",
    ),
    "a message with keep-alives in a library": Shape(
        Response("Hello there.", (), "stop", USAGE, "m"),
        message_start() + ": keep-alive\n\n" + block("Hello ", "there.") + message_delta() + STOP,
        family="pydantic-ai:anthropic",
    ),
    "a malformed call of Bedrock": failed(
        "malformed",
        "",
        json.dumps(
            {
                "output": {"message": {"role": "assistant", "content": [{"text": "Hello "}]}},
                "stopReason": "malformed_tool_use",
                "usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5},
                "metrics": {"latencyMs": 1},
            }
        ),
        "malformed_tool_use",
        family="pydantic-ai:bedrock",
    ),
    "references of Mistral in a library": Shape(
        Response("Oslo is the capital of Norway.", (), "stop", USAGE, "m"),
        chunk({"content": [LIBRARY_CITED[0]]}, created=1)
        + chunk({"content": [LIBRARY_CITED[1]]}, created=1)
        + chunk(" of Norway.", "stop", created=1, usage=CHAT_USAGE)
        + DONE,
        completion({"role": "assistant", "content": LIBRARY_CITED}, created=1),
        "pydantic-ai:mistral",
    ),
}

SHAPES: dict[str, Shape] = {
    **ENDS,
    **BREAKS,
    **REASONS,
    **ERRORS,
    **MESSAGES,
    **RESPONSES,
    **CONTENT,
    **LIBRARY,
}

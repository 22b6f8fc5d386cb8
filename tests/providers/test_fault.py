from __future__ import annotations

import json
import ssl
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest

from orchestrator.errors import ERROR_KINDS, LLMError
from orchestrator.llm.retry import FailureKind, classify
from orchestrator.providers import fault

DATE = "Sun, 22 Nov 2026 08:00:00 GMT"


def openai_error(code: object = None, type_: object = None, message: str = "no") -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def anthropic_error(type_: str, message: str = "no", **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": type_, "message": message, **more}, "request_id": "req_1"}


ANSWERS: list[tuple[int | None, object, str, int | None, bool]] = [
    # status, body -> kind, status, retryable
    (429, openai_error("rate_limit_exceeded", "tokens"), "rate_limited", 429, True),
    (429, openai_error("insufficient_quota", "insufficient_quota"), "rate_limited", 429, False),
    (401, openai_error("invalid_api_key", "invalid_request_error"), "auth", 401, False),
    (403, openai_error("unsupported_country_region_territory", "request_forbidden"), "auth", 403, False),
    (400, openai_error("context_length_exceeded", "invalid_request_error"), "context_length", 400, False),
    (400, openai_error("content_filter"), "content_filter", 400, False),
    (400, openai_error("invalid_prompt", "invalid_request_error"), "content_filter", 400, False),
    (404, openai_error("model_not_found", "invalid_request_error"), "client_error", 404, False),
    (400, openai_error(None, "invalid_request_error"), "client_error", 400, False),
    (500, openai_error(None, "server_error"), "server_error", 500, True),
    (503, openai_error(None, "server_error"), "server_error", 503, True),
    (529, anthropic_error("overloaded_error"), "server_error", 529, True),
    (504, anthropic_error("timeout_error"), "timeout", 504, True),
    (504, "<html>gateway</html>", "server_error", 504, True),
    (429, anthropic_error("rate_limit_error"), "rate_limited", 429, True),
    (429, anthropic_error("x", details={"error_code": "ramp_limit_exceeded"}), "rate_limited", 429, True),
    (
        400,
        anthropic_error("invalid_request_error", details={"error_code": "enforced_spend_limit_reached"}),
        "rate_limited",
        400,
        False,
    ),
    (403, anthropic_error("permission_error"), "auth", 403, False),
    (402, anthropic_error("billing_error"), "rate_limited", 402, False),
    (413, anthropic_error("request_too_large"), "client_error", 413, False),
    (413, openai_error("rate_limit_exceeded", "tokens"), "rate_limited", 413, False),
    (402, openai_error("invalid_request_error", "unknown_error"), "client_error", 402, False),
    (400, openai_error("tool_use_failed", "invalid_request_error"), "malformed", 400, True),
    (400, {"error": {"code": 400, "type": "exceed_context_size_error", "n_ctx": 16}}, "context_length", 400, False),
    # the same behind a 200, or in a stream
    (200, openai_error("rate_limit_exceeded"), "rate_limited", None, True),
    (200, {"error": {"code": 502, "message": "upstream"}}, "server_error", 502, True),
    (None, {"error": {"code": "429", "message": "slow"}}, "rate_limited", 429, True),
    (None, openai_error(None, "invalid_request_error"), "client_error", None, False),
    (None, anthropic_error("overloaded_error"), "server_error", None, True),
    (None, {"error": {"message": "oops"}}, "server_error", None, True),
    (None, {"error": "oops"}, "server_error", None, True),
    # bodies of other shapes
    (429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}], "rate_limited", 429, True),
    (None, [{"error": {"status": "UNAVAILABLE"}}], "server_error", None, True),
    (400, {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, "client_error", 400, False),
    (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "client_error", 422, False),
    (429, None, "rate_limited", 429, True),
    (500, "", "server_error", 500, True),
    (501, None, "server_error", 501, False),
    (418, {"error": None}, "client_error", 418, False),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind", "seen", "retryable"), ANSWERS, ids=repr)
def test_an_answer_with_an_error_is_known_by_its_codes_and_status(
    status: int | None, body: object, kind: str, seen: int | None, retryable: bool
) -> None:
    error = fault.of_answer(status, {}, body)
    assert (error.kind, error.status) == (kind, seen)
    assert classify(error) == FailureKind(kind, retryable)


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 3333404 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 199211 + 20000 > 200000",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "The input token count (1050000) exceeds the maximum number of tokens allowed (1048575).",
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    ],
)
def test_a_context_that_is_too_long_is_known_by_its_documented_text_only_where_there_is_no_code(
    message: str,
) -> None:
    assert (
        fault.of_answer(400, {}, openai_error(None, "invalid_request_error", message)).kind
        == "context_length"
    )
    assert (
        fault.of_answer(429, {}, openai_error("insufficient_quota", message=message)).kind == "rate_limited"
    )
    assert fault.of_answer(500, {}, openai_error(None, message=message)).kind == "server_error"


def test_no_other_text_is_read() -> None:
    said = "rate limit, timeout, try again, context_length_exceeded, content_filter, insufficient_quota"
    assert fault.of_answer(400, {}, openai_error(message=said)).kind == "client_error"


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after": "Sun, 22 Nov 2026 08:00:07 GMT", "date": DATE}, 7.0),
        ({"retry-after": "Sun, 22 Nov 2026 07:59:00 GMT", "date": DATE}, None),
        ({"retry-after": "Sun, 22 Nov 2099 08:00:00 +0100"}, "years"),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Sun, 99 Nov 2026 08:00:07 GMT"}, None),
        ({}, None),
    ],
    ids=repr,
)
def test_the_delay_is_read_from_seconds_milliseconds_and_dates(headers: dict[str, str], delay: Any) -> None:
    found = fault.of_answer(429, headers, None).retry_after
    if delay == "years":
        assert found is not None
        assert found > 1e9
    else:
        assert found == delay


def test_the_delay_may_stand_in_the_body() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "35.5s"}]
    assert fault.of_answer(429, {}, {"error": {"details": details}}).retry_after == 35.5
    assert fault.of_answer(429, {}, {"error": {"details": [{"retryDelay": 3}, None]}}).retry_after is None


@pytest.mark.parametrize(
    ("status", "told", "retryable"),
    [(429, "false", False), (400, "true", True), (529, "true", True), (500, "maybe", True), (400, "", False)],
)
def test_the_provider_may_say_whether_to_try_again(status: int, told: str, retryable: bool) -> None:
    error = fault.of_answer(status, {"X-Should-Retry": told}, None)
    assert classify(error).retryable is retryable


@pytest.mark.parametrize(
    "body", [None, "", [], [[]], {}, {"error": {}}, {"error": []}, {"error": 1}, 7, b"x"], ids=repr
)
@pytest.mark.parametrize("status", [None, 200, 400, 500])
def test_a_body_of_any_shape_gives_an_error_of_a_known_kind(status: int | None, body: object) -> None:
    assert fault.of_answer(status, None, body).kind in ERROR_KINDS


def test_the_message_names_status_code_and_what_the_provider_said_at_a_bearable_length() -> None:
    error = fault.of_answer(429, {}, openai_error("insufficient_quota", message="x" * 9_000))
    assert str(error).startswith("the provider answered with an error (HTTP 429, insufficient_quota): xxx")
    assert len(str(error)) < 600
    assert "html" not in str(fault.of_answer(502, {}, "<html>Bad gateway</html>"))
    assert str(fault.of_answer(502, {}, "upstream is gone")).endswith("(HTTP 502): upstream is gone")


def test_what_is_no_failed_call_is_none_of_ours() -> None:
    assert fault.of_exception(KeyError("bug")) is None
    assert fault.of_exception(TypeError("unexpected argument")) is None


def request() -> httpx2.Request:
    return httpx2.Request("POST", "https://models.test/v1/chat/completions")


def caused(error: Exception, *causes: BaseException) -> Exception:
    present: BaseException = error
    for cause in causes:
        present.__cause__ = cause
        present = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (openai.APITimeoutError(request()), "timeout", True),
        (httpx2.ReadTimeout(""), "timeout", True),
        (httpx2.PoolTimeout(""), "timeout", True),
        (openai.APIConnectionError(request=request()), "connection", True),
        (httpx2.ReadError(""), "connection", True),
        (httpx2.RemoteProtocolError("incomplete chunked read"), "connection", True),
        (ConnectionResetError(), "connection", True),
        (
            caused(openai.APIConnectionError(request=request()), httpx2.UnsupportedProtocol("no http://")),
            "client_error",
            False,
        ),
        (
            caused(
                openai.APIConnectionError(request=request()),
                httpx2.ConnectError(""),
                ssl.SSLCertVerificationError(),
            ),
            "connection",
            False,
        ),
        (
            caused(openai.APIConnectionError(request=request()), httpx2.DecodingError("gzip")),
            "malformed",
            True,
        ),
        (json.JSONDecodeError("no", "{", 1), "malformed", True),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), "malformed", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_the_network_does_is_known_by_types(error: Exception, kind: str, retryable: bool) -> None:
    found = fault.of_exception(error, partial="so far")
    assert found is not None
    assert (found.status, found.retry_after, found.partial) == (None, None, "so far")
    assert classify(found) == FailureKind(kind, retryable)


def test_an_exception_with_an_answer_is_judged_by_the_answer() -> None:
    response = httpx2.Response(429, headers={"retry-after": "4"}, request=request())
    error = openai.RateLimitError("x", response=response, body={"code": "rate_limit_exceeded"})
    found = fault.of_exception(error)
    assert found is not None
    assert (found.kind, found.status, found.retry_after) == ("rate_limited", 429, 4.0)


def test_an_error_event_of_a_stream_has_the_status_200_and_is_judged_by_its_body() -> None:
    response = httpx2.Response(200, request=request())
    raised = SimpleNamespace(response=response, status_code=200, body=anthropic_error("overloaded_error"))
    error = type("APIStatusError", (Exception,), vars(raised))("overloaded")
    found = fault.of_exception(error)
    assert found is not None
    assert (found.kind, found.status) == ("server_error", None)
    bare = fault.of_exception(openai.APIError("oops", request(), body={"code": 502, "message": "upstream"}))
    assert bare is not None
    assert (bare.kind, bare.status) == ("server_error", 502)


def test_the_message_of_a_failed_connection_names_the_address_and_the_root_cause() -> None:
    error = caused(
        openai.APIConnectionError(request=request()),
        httpx2.ConnectError("x"),
        ConnectionRefusedError(111, "Connection refused"),
    )
    assert str(fault.of_exception(error)) == (
        "the connection to the provider failed at https://models.test/v1/chat/completions "
        "(ConnectionRefusedError: [Errno 111] Connection refused)"
    )


def test_a_stream_that_just_ends_is_a_lost_connection_with_what_it_had_brought() -> None:
    error = fault.of_cut("Once upon")
    assert isinstance(error, LLMError)
    assert (error.kind, error.partial) == ("connection", "Once upon")
    assert str(error) == "the connection to the provider failed after 9 characters of its answer"


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"error": {"message": "x"}}, True),
        ([{"error": {"code": 429}}], True),
        ({"type": "error", "code": "server_error", "message": "x"}, True),
        ({"object": "error", "message": "x"}, True),
        ({"error": None, "choices": []}, False),
        ({"error": {}, "choices": []}, False),
        ({"type": "response", "error": None}, False),
        ([], False),
        ("error", False),
        (None, False),
    ],
    ids=repr,
)
def test_an_error_object_is_told_from_an_answer(body: object, answer: bool) -> None:
    assert fault.holds_error(body) is answer


def test_json_that_is_nested_too_deeply_is_malformed() -> None:
    with pytest.raises(RecursionError) as deep:
        json.loads("[" * 1_000_000)
    told = fault.of_exception(deep.value)
    assert told is not None
    assert told.kind == "malformed"

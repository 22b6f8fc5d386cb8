"""Convert a provider's answer, or an exception of its SDK, to one `LLMError`. Only this module classifies failures.

    of_answer(status, headers, body)      an HTTP answer, or an error object inside a 200 or a stream
    of_exception(error)                   an exception of the SDK or its HTTP library; None if it is not a failed call
    of_cut(partial)                       a stream that stopped before its end

The sources are, in this order: the error codes and types of provider bodies, the HTTP status, the types of
exceptions. The headers `retry-after-ms` and `Retry-After` (seconds or a date) give the delay, `x-should-retry`
decides about a retry. Types are recognised by their names along the class hierarchy: both SDKs, and the host's own
client, may use the HTTP library in another version or under another name, and none of them is imported here.

Two special cases:

- A context that is too long has a code at OpenAI (`context_length_exceeded`) and a type at llama.cpp
  (`exceed_context_size_error`). Most others, and the gateways before them, have neither, and answer as to any bad
  request. Only there, and only for the statuses 400, 413 and 422, their sentences are recognised; they are
  documented by the providers or were reported by users.
- A delay of 0 or a date in the past is ignored: one provider sends `retry-after-ms: 0` beside `retry-after: 1`. The
  policy's own backoff is used instead.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from orchestrator.errors import LLMError
from orchestrator.llm.retry import classify, was_sent

_TOO_LONG = re.compile(
    r"ContextWindowExceededError"  # LiteLLM's proxy, before the message of its provider
    r"|prompt (?:is )?too long"  # Anthropic, Fireworks; Z.ai
    r"|exceed(?:s|ed)? context limit"  # Anthropic, input and max_tokens together
    r"|maximum (?:context|prompt) (?:length|limit)"  # OpenAI, Azure, vLLM, DeepSeek, Mistral, OpenRouter; xAI
    r"|exceeds the (?:context window|available context size|maximum allowed input length)"  # OpenAI; llama.cpp
    r"|exceeds? (?:the |your )?context (?:length|window)|context window exceeds"  # Ollama, llama-cpp-python; MiniMax
    r"|(?:longer|greater) than the (?:model's )?context length"  # SGLang, LM Studio
    r"|input token count .{0,200}exceeds the maximum number of tokens"  # Gemini
    r"|Input tokens exceed the configured limit"  # Azure
    r"|Input is too long for requested model"  # Bedrock
    r"|too many (?:prompt|input) tokens"
    r"|too many tokens: size limit exceeded"  # Cohere
    r"|prompt token count of \d+ exceeds the limit"  # GitHub Copilot
    r"|exceeded model token limit"  # Moonshot
    r"|reduce the length of the (?:messages|prompt)"  # Groq, Cerebras
    r"|inputs`? tokens \+ `?max_new_tokens`? must be"  # Text Generation Inference, Together
    r"|Range of input length should be",  # DashScope
    re.IGNORECASE,
)
_NOT_TOO_LONG = "string_above_max_length"
"""A code of OpenAI for one argument that is too long, which LiteLLM mistakes for the whole prompt."""
_READ = 10_000
"""Maximum characters of a message that are searched."""


def is_context_too_long(message: str) -> bool:
    """Return whether a message complains about the length of the whole context, and not of one argument."""
    beginning = message[:_READ]
    return _NOT_TOO_LONG not in beginning and _TOO_LONG.search(beginning) is not None


_KINDS_OF_WORDS: dict[str, tuple[str, ...]] = {
    "context_length": (
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "contextwindowexceedederror",  # LiteLLM
        "too_many_prompt_tokens",  # Perplexity
        "tokens_limit_reached",  # GitHub Models
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot
    ),
    "content_filter": (
        "content_filter",
        "content_policy_violation",
        "responsibleaipolicyviolation",
        "image_content_policy_violation",
        "invalid_prompt",  # OpenAI: flagged as against the usage policy
        "bio_policy",
        "misalignment_policy_violation",
    ),
    "rate_limited": (
        "rate_limit_exceeded",
        "rate_limit_error",
        "ratelimitreached",
        "ramp_limit_exceeded",
        "resource_exhausted",
    ),
    "auth": (
        "invalid_api_key",
        "authentication_error",
        "permission_error",
        "unauthenticated",
        "permission_denied",
        "organization_on_hold",
    ),
    "timeout": ("timeout_error", "deadline_exceeded", "vector_store_timeout"),
    "server_error": (
        *("overloaded_error", "unavailable_error", "unavailable"),
        "modelstreamerrorexception",  # Bedrock, in a stream: the model failed
    ),
    "malformed": ("tool_use_failed", "json_validate_failed"),  # Groq checks the output of its model
}
KIND_OF_WORD = {word: kind for kind, words in _KINDS_OF_WORDS.items() for word in words}

QUOTA = frozenset(
    (
        "insufficient_quota",
        "billing_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "contract_spend_limit_reached",
        "enforced_spend_limit_reached",
        "linked_organization_spend_limit_reached",
    )
)
"""Limits that only money or another month lifts: rate_limited, and never retried."""

REQUESTS_FAULT = frozenset(
    (
        *("invalid_request_error", "not_found_error", "model_not_found", "request_too_large"),
        *("invalid_argument", "not_found", "data_residency_mismatch"),
        *("invalid_image", "invalid_image_format", "invalid_image_mode", "invalid_image_url"),
        *("invalid_base64_image", "unsupported_image_media_type", "empty_image_file", "image_parse_error"),
        *("image_too_large", "image_too_small", "image_file_too_large", "image_file_not_found"),
        "failed_to_download_image",
    )
)
"""The request is at fault. Used only without a status: beside one, providers use these words for anything."""

KIND_OF_TYPE = {
    "TimeoutError": "timeout",
    "TimeoutException": "timeout",
    "APITimeoutError": "timeout",
    "UnsupportedProtocol": "client_error",
    "InvalidURL": "client_error",
    "LocalProtocolError": "client_error",
    "TooManyRedirects": "client_error",
    "ConnectionError": "connection",
    "gaierror": "connection",
    "SSLError": "connection",
    "TransportError": "connection",
    "APIConnectionError": "connection",
    "DecodingError": "malformed",
    "JSONDecodeError": "malformed",
    "UnicodeDecodeError": "malformed",
    "RecursionError": "malformed",  # JSON that is nested too deeply
    "APIResponseValidationError": "malformed",
    "CredentialsError": "auth",
    "SubjectTokenProviderError": "auth",
    "NoCredentialsError": "auth",  # of botocore, like the next ones
    "PartialCredentialsError": "auth",
    "CredentialRetrievalError": "auth",
    "TokenRetrievalError": "auth",
    "SSOError": "auth",
    "BotoCoreError": "client_error",
    "ModelConnectionError": "connection",  # of pydantic-ai, like the next ones
    "ModelTimeoutError": "timeout",
    "ModelRequestTimeout": "timeout",
    "ModelRateLimitError": "rate_limited",
    "ModelServerError": "server_error",
    "ModelUnavailableError": "server_error",
    "ModelAuthenticationError": "auth",
    "ModelContextWindowExceededError": "context_length",
    "ModelRequestRejectedError": "client_error",
    "ContentFilterError": "content_filter",
    "UnexpectedModelBehavior": "malformed",
    "ModelAPIError": "malformed",  # the base class of those above: an answer that the library cannot read
}

SENTENCES = {
    "timeout": "the provider did not answer in time",
    "client_error": "the request could not be sent",
    "connection": "the connection to the provider failed",
    "malformed": "the provider sent no valid answer",
    "auth": "there are no credentials to call the provider with",
    "rate_limited": "the provider limits the rate of requests",
    "server_error": "the provider failed",
    "context_length": "the conversation is longer than the model reads",
    "content_filter": "the provider refused the content",
}


_TOO_LONG_AT = frozenset((None, 400, 413, 422))
_NOT_FOUND = 404
_CONTENT_TOO_LARGE = 413
_DIGITS = 3
_FIRST_REDIRECT, _FIRST_ERROR, _LAST_ERROR = 300, 400, 599
_LONGEST = 500
_DEEPEST_CAUSE = 10


def of_answer(
    status: int | None,
    headers: Mapping[str, str] | None,
    body: object,
    *,
    partial: str = "",
    url: str = "",
) -> LLMError:
    """Return the error for an answer with an error. `body` is parsed JSON, or text if it is not JSON.

    A status of 404 names the `url`: a wrong base URL is its usual cause.
    """
    problem = _problem(body)
    # The codes and types of an error, the most exact first.
    inner, details = problem.get("innererror"), problem.get("details")
    found = (
        problem.get("code"),
        inner.get("code") if isinstance(inner, Mapping) else None,
        details.get("error_code") if isinstance(details, Mapping) else None,
        problem.get("type"),
        problem.get("status"),
    )
    words = [word.lower() for word in found if isinstance(word, str)]
    status = status if _is_error(status) else _number(problem)
    message = _message(problem, body)
    said = {name.lower(): value for name, value in (headers or {}).items()}
    return LLMError(
        _sentence(status, problem, message, url),
        kind=_kind(status, words, message),
        status=status,
        retry_after=_retry_after(said, problem),
        partial=partial,
        retryable=_retryable(said, status, words),
        request_id=request_id(said) or _request_id_in(body),
    )


def request_id(headers: Mapping[str, str]) -> str:
    """Return the server's name of a request from the headers of its answer; empty without one."""
    said = {name.lower(): value for name, value in headers.items()}
    return next((found for name in _REQUEST_ID if (found := _plain_id(said.get(name)))), "")


def _request_id_in(body: object) -> str:
    """Return the name of a request from the body of an error."""
    inner = body.get("error") if isinstance(body, Mapping) else None
    places = [one for one in (body, inner) if isinstance(one, Mapping)]
    return next((found for one in places if (found := _plain_id(one.get("request_id")))), "")


def _plain_id(value: object) -> str:
    return value if isinstance(value, str) and _PLAIN_ID.fullmatch(value) else ""


_REQUEST_ID = (
    "x-request-id",
    "request-id",
    "x-amzn-requestid",
    "apim-request-id",
    "x-ms-request-id",
    "cf-ray",
)
"""Headers of vendors, of their clouds and of the proxy before them, the most exact first."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")


def of_exception(error: BaseException, *, partial: str = "", address: str = "") -> LLMError | None:
    """Return the error for an exception, or None if neither the provider nor the network caused it.

    `address` is named for a status of 404 if the exception does not hold the address of the request.
    """
    response = getattr(error, "response", error)  # pydantic-ai's has the members of the response itself
    status, body = getattr(response, "status_code", None), _read(getattr(error, "body", None))
    if _is_error(status) or (body is not None and holds_error(body)):
        return of_answer(
            status, getattr(response, "headers", None), body, partial=partial, url=_url(error) or address
        )
    if isinstance(status, int) and _FIRST_REDIRECT <= status < _FIRST_ERROR:
        headers = getattr(response, "headers", {})
        where = urlsplit(headers.get("location", ""))._replace(query="", fragment="").geturl()
        message = f"the provider answered with a redirect (HTTP {status}) to {where or 'nowhere'}"
        return LLMError(f"{message}, which is not followed", kind="client_error", status=status)
    causes = list(_causes(error))
    kind = next((kind for one in reversed(causes) if (kind := _kind_of_type(one)) is not None), None)
    if kind is None:
        # The SDK reports an error without a status: an error object in a stream.
        return None if body is None else of_answer(None, None, body, partial=partial)
    doubted = any(isinstance(one, ssl.SSLCertVerificationError) for one in causes)
    return LLMError(
        _message_of(kind, error, causes[-1], partial),
        kind=kind,
        partial=partial,
        retryable=False if doubted else None,  # the next handshake shows the same certificate
        sent=was_sent(error),
    )


def of_cut(partial: str) -> LLMError:
    """Return the error of a stream that ended, without any error, before its end."""
    return LLMError(_message_of("connection", None, None, partial), kind="connection", partial=partial)


def holds_error(body: object) -> bool:
    """Return whether a body, or an event of a stream, is an error object, for any HTTP status."""
    if isinstance(body, list):
        return len(body) == 1 and isinstance(body[0], Mapping) and holds_error(body[0])
    if not isinstance(body, Mapping):
        return False
    return bool(body.get("error")) or "error" in (body.get("type"), body.get("object"))


# ---- formats of providers ----


def _problem(body: object) -> Mapping[str, Any]:
    """Return the error object in a body; Gemini wraps it in a list, Ollama's is a text, vLLM's and FastAPI's bare."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, Mapping):
        return {}
    if isinstance(body.get("Error"), Mapping):  # of botocore
        return {str(name).lower(): value for name, value in body["Error"].items()}
    inner = body.get("error")
    if isinstance(inner, Mapping):
        return inner
    return {"message": inner, "code": inner, **body} if isinstance(inner, str) else body


def _read(body: object) -> object:
    """Return a body that a library left as bytes: as JSON, or as text."""
    if not isinstance(body, bytes):
        return body
    with suppress(ValueError, RecursionError):
        return json.loads(body)
    return body.decode(errors="replace")


def _number(problem: Mapping[str, Any]) -> int | None:
    """Return the HTTP status in the error object itself: behind a 200, or inside a stream."""
    for value in (problem.get("status"), problem.get("code")):
        number = (
            int(value) if isinstance(value, str) and value.isdecimal() and len(value) == _DIGITS else value
        )
        if _is_error(number):
            return number
    return None


def _is_error(status: object) -> TypeGuard[int]:
    return isinstance(status, int) and _FIRST_ERROR <= status <= _LAST_ERROR


def _message(problem: Mapping[str, Any], body: object) -> str:
    found = problem.get("message") or problem.get("detail")
    if isinstance(found, str):
        return found
    if found:
        with suppress(
            ValueError, TypeError, RecursionError
        ):  # too many digits, a key that is not text, too deep
            return json.dumps(found, ensure_ascii=False, default=str)
    return body if isinstance(body, str) and "<" not in body else ""  # a proxy's page is of no use


def _kind(status: int | None, words: Sequence[str], message: str) -> str:
    if any(word in QUOTA for word in words):
        return "rate_limited"
    for word in words:
        if word in KIND_OF_WORD:
            return KIND_OF_WORD[word]
    if status in _TOO_LONG_AT and is_context_too_long(message):
        return "context_length"
    if status is not None:
        return classify(LLMError("", status=status)).kind
    # The call failed; without another cause, the server is at fault.
    return "client_error" if any(word in REQUESTS_FAULT for word in words) else "server_error"


def _sentence(status: int | None, problem: Mapping[str, Any], message: str, url: str) -> str:
    facts = [f"HTTP {status}"] if status is not None else []
    word = problem.get("code") or problem.get("type")
    facts += [word] if isinstance(word, str) and not word.isdecimal() else []
    what = (
        f"the provider answered with an error ({', '.join(facts)})"
        if facts
        else "the provider reported an error"
    )
    what += f" at {url}" if url and status == _NOT_FOUND else ""
    return f"{what}: {message[:_LONGEST]}" if message else what


# ---- whether and when to retry ----


def _retryable(said: Mapping[str, str], status: int | None, words: Sequence[str]) -> bool | None:
    told = said.get("x-should-retry", "").strip().lower()
    if told in ("true", "false"):
        return told == "true"
    # Too large stays too large, even if the code blames the tokens of a minute.
    hopeless = status == _CONTENT_TOO_LARGE or any(word in QUOTA for word in words)
    return False if hopeless else None


def _retry_after(said: Mapping[str, str], problem: Mapping[str, Any]) -> float | None:
    """Return the seconds to wait, above 0 and finite, or None."""
    choices = (
        _seconds(said.get("retry-after-ms"), 1000),
        _seconds(said.get("retry-after")),
        _until(said.get("retry-after"), said.get("date")),
        _delay_in_details(problem.get("details")),
    )
    return next(
        (delay for delay in choices if delay is not None and math.isfinite(delay) and delay > 0), None
    )


def _seconds(text: str | None, unit: float = 1) -> float | None:
    with suppress(ValueError):
        return None if text is None else float(text) / unit
    return None


def _until(date: str | None, now: str | None) -> float | None:
    """Return the seconds until an HTTP date, by the server's clock if it sends its time."""
    then = _epoch(date)
    return None if then is None else then - (_epoch(now) or time.time())


def _epoch(date: str | None) -> float | None:
    with suppress(TypeError, ValueError, OverflowError):
        return email.utils.parsedate_to_datetime(date).timestamp() if date else None
    return None


def _delay_in_details(details: object) -> float | None:
    """Return the delay of Gemini's RetryInfo: {"@type": "…RetryInfo", "retryDelay": "35s"}."""
    for one in details if isinstance(details, list) else ():
        delay = one.get("retryDelay") if isinstance(one, Mapping) else None
        if isinstance(delay, str) and delay.endswith("s"):
            return _seconds(delay[:-1])
    return None


# ---- exceptions of SDKs ----


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_DEEPEST_CAUSE):
        if error is None:
            return
        yield error
        error = error.__cause__


def _kind_of_type(error: BaseException) -> str | None:
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((KIND_OF_TYPE[name] for name in names if name in KIND_OF_TYPE), None)


def _message_of(kind: str, error: BaseException | None, root: BaseException | None, partial: str) -> str:
    url = _url(error)
    sentence = SENTENCES[kind] + (f" at {url}" if url else "")
    if partial:
        sentence += f" after {len(partial)} characters of its answer"
    if root is None:
        return sentence
    if isinstance(root, json.JSONDecodeError) and _PLAIN_WORDS.match(
        root.doc
    ):  # the reason of a server or proxy
        return f"{sentence}: {root.doc.strip()[:_LONGEST]}"
    text = f": {root}"[:_LONGEST] if str(root) else ""
    return f"{sentence} ({type(root).__name__}{text})"


_PLAIN_WORDS = re.compile(r"\s*[^\W\d_][^<]*\Z")
"""A document that is words in place of JSON, and no page."""


def _url(error: BaseException | None) -> str:
    """Return the requested address without its query and credentials; empty if it is unknown."""
    for one in _causes(error):
        with suppress(RuntimeError, ValueError):  # raised if the HTTP library did not store the request
            source = getattr(one, "request", None) or getattr(getattr(one, "response", None), "request", None)
            if address := str(getattr(source, "url", "")):
                parts = urlsplit(address)
                host = parts.netloc.rpartition("@")[2]
                return parts._replace(netloc=host, query="", fragment="").geturl()
    return ""

"""The codes of providers and the exception types of libraries, and the kind of failure that each one stands for."""

from __future__ import annotations

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

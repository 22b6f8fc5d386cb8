"""A context that is too long is recognised in the words of each provider and gateway, and nothing else is."""

from __future__ import annotations

import pytest

from orchestrator.llm.retry import classify
from orchestrator.providers import fault

SENTENCES = {
    "OpenAI": "This model's maximum context length is 4097 tokens. However, your messages resulted in 35569 tokens.",
    "OpenAI responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Azure": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens.",
    "Anthropic": "prompt is too long: 209303 tokens > 200000 maximum",
    "Anthropic with output": "input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000",
    "Bedrock": "The model returned the following errors: Input is too long for requested model.",
    "Gemini": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "Mistral": "Prompt contains 152960 tokens, too large for model with 131072 maximum context length",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "OpenRouter": "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens",
    "vLLM": "Input length (265330) exceeds model's maximum context length (262144).",
    "LiteLLM": (
        "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: "
        "OpenAIException - too much"
    ),
    "Groq": "Please reduce the length of the messages or completion.",
    "Cerebras": "Please reduce the length of the messages or completion. Current length is 132784",
    "llama.cpp": "the request exceeds the available context size. try increasing the context size",
    "llama-cpp-python": "Requested tokens (2065) exceed context window of 1800",
    "Ollama": "the input length exceeds the context length",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens)",
    "MiniMax": "invalid params, context window exceeds limit",
    "Moonshot": "Your request exceeded model token limit: 131072 (requested: 200000)",
    "Z.ai": "Prompt too long",
    "Copilot": "prompt token count of 50000 exceeds the limit of 8192",
    "TGI": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "DashScope": "Range of input length should be [1, 30720]",
    "plain": "too many prompt tokens: 9000 > 8192",
}


@pytest.mark.parametrize("sentence", SENTENCES.values(), ids=SENTENCES)
def test_a_context_that_is_too_long_is_recognised(sentence: str) -> None:
    for said in (sentence, sentence.upper(), f"upstream said: {sentence}"):
        error = fault.of_answer(400, None, {"error": {"message": said, "type": "invalid_request_error"}})
        assert (error.kind, classify(error).retryable) == ("context_length", False)


@pytest.mark.parametrize(
    ("status", "sentence", "kind"),
    [
        (400, "max_tokens is too large: 100000", "client_error"),
        (400, "The context is large, but acceptable.", "client_error"),
        (
            400,
            (
                "litellm.ContextWindowExceededError: Invalid 'tools[1].function.description': string too long. "
                "Expected a string with maximum length 1024 (string_above_max_length)"
            ),
            "client_error",
        ),
        (400, "Invalid 'user': string too long. Expected a string with maximum length 64", "client_error"),
        (429, "Too many input tokens in a minute, please wait", "rate_limited"),
        (503, "too many prompt tokens are being worked on", "server_error"),
    ],
)
def test_what_only_sounds_alike_is_no_context_that_is_too_long(status: int, sentence: str, kind: str) -> None:
    assert fault.of_answer(status, None, {"error": {"message": sentence}}).kind == kind


def test_litellms_own_name_for_it_is_a_code() -> None:
    body = {"error": {"message": "no", "type": "ContextWindowExceededError", "code": "400"}}
    assert fault.of_answer(400, None, body).kind == "context_length"

"""Recognise errors about a too long context by their message, in the words of providers and gateways.

Most of them have no code for it. The sentences are documented by the providers or were reported by users.
"""

from __future__ import annotations

import re

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

"""Checks that all vendors' models share, before anything is sent: name, address, key, time."""

from __future__ import annotations

import math
import os
import re
from urllib.parse import urlsplit

from pydantic import SecretStr

from orchestrator.errors import ConfigError, see_guide

CONNECT_SECONDS = 5.0
"""Maximum seconds to connect, even if an answer may take longer."""
_NO_KEY = "none"
"""Sent to a compatible server without a known key: the SDKs require one, local servers ignore it."""


def check_total_timeout(seconds: float | None) -> float | None:
    """Return the total timeout of a model. Raises ConfigError."""
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(
            f"total_timeout is {seconds!r}; possible: seconds, more than 0, or None for nine tenths of the time that "
            "the state of the run has left"
        )
    return seconds


def check_model(model: str, structured: str, timeout: float, base_url: str | None) -> None:
    """Raise ConfigError for arguments that no model can have."""
    if not model:
        raise ConfigError("the model has no name")
    if structured not in ("native", "prompt"):
        raise ConfigError(f"structured is {structured!r}; possible: native, prompt")
    if not (math.isfinite(timeout) and timeout > 0):
        raise ConfigError(f"timeout is {timeout!r}; possible: seconds, more than 0")
    if base_url is not None:
        check_address(base_url)


def check_address(base_url: str) -> None:
    """Raise ConfigError unless the text is the address of a server."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"base_url is {base_url!r}; possible: an address that begins with http:// or https://"
        )


def provider_name(given: str | None, family: str, address: str) -> str:
    """Return the name of a provider for telemetry and prices: the host's own, else by address, else the family's.

    The names are values of `gen_ai.provider.name` in OpenTelemetry, where it has one. Raises ConfigError.
    """
    if given is not None:
        if not _PROVIDER.fullmatch(given):
            raise ConfigError(
                f"provider is {given!r}; possible: 1 to 64 lower-case letters, digits, '_', '-' and '.'"
            )
        return given
    host = (urlsplit(address).hostname or "").rstrip(".")
    found = [name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}")]
    found += [name for form, name in _REGIONAL if form.search(host)]
    return found[0] if found else family


_PROVIDERS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "openai.azure.com": "azure.ai.openai",
    "cognitiveservices.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "models.ai.azure.com": "azure.ai.inference",
    "models.github.ai": "azure.ai.inference",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "cohere.com": "cohere",
    "cohere.ai": "cohere",
    "deepseek.com": "deepseek",
    "groq.com": "groq",
    "ml.cloud.ibm.com": "ibm.watsonx.ai",
    "mistral.ai": "mistral_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
    "openrouter.ai": "openrouter",
    "moonshot.ai": "moonshot_ai",
    "moonshot.cn": "moonshot_ai",
    "cerebras.ai": "cerebras",
}
"""End of a host name -> its provider. The last four are not in the list of OpenTelemetry, which allows other names."""
_REGIONAL = (
    (re.compile(r"^bedrock[a-z-]*\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?$"), "aws.bedrock"),
    (re.compile(r"^(?:[a-z0-9-]+-)?aiplatform\.googleapis\.com$"), "gcp.vertex_ai"),
)
_PROVIDER = re.compile(r"[a-z0-9_.-]{1,64}")


def key_of(vendor: str, given: str | SecretStr | None, base_url: str | None) -> SecretStr:
    """Return the API key: the given one, else that of the vendor's variable. Raises ConfigError.

    An address that is not the vendor's own needs no key.
    """
    prefix = vendor.upper()
    found = given if given is not None else os.environ.get(f"{prefix}_API_KEY") or None
    key = found.get_secret_value() if isinstance(found, SecretStr) else found
    if key is None:
        if not (base_url or os.environ.get(f"{prefix}_BASE_URL")):
            raise ConfigError(
                f"there is no API key for {vendor}: give api_key, or set {prefix}_API_KEY; {see_guide('providers')}"
            )
        return SecretStr(_NO_KEY)
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("the API key is empty, or has characters that no HTTP header can have")
    return SecretStr(key)

"""What the clients of all vendors share: name, address, key and time, TLS, the size of answers, masked secrets.

Loading the certificates is nearly all that a new client costs, so all share one TLS context. They may, because a
connection sets only its protocols in it, and all clients speak HTTP/1.1.

One number, `max_response_bytes` of a model, limits three things: the body of an answer that is not streamed, each
event of a stream, and the stored part of a stream. It limits the stored part and not the transferred one, because
servers wrap each token into some 300 bytes: 32 MB of those would end an answer of 100,000 tokens that is 400 kB long.

The HTTP library decompresses in steps of 1 MiB, so that the limit applies before a small body has become a large one.

A secret is masked in each form in which a server may repeat it: as it is, percent-encoded, with JSON or HTML escapes,
as hexadecimal digits and as base64, there also inside of a longer text (`Basic base64(user:password)`). The start of
a form is masked too, since servers and this package cut long messages. A form of fewer than 10 characters is not
masked: it would occur everywhere. Credentials after `Basic` are masked whether they are known or not.
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
import math
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from orchestrator.errors import ConfigError, LLMError, see_guide

if TYPE_CHECKING:
    import ssl

    from pydantic import SecretStr

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that name the certificates."""


def shared_context(client: type) -> ssl.SSLContext:
    """Return the context of a class of clients: `AsyncClient` of httpx or httpx2, or a subclass.

    The certificates are loaded again if one of the variables changes, but not if a file changes.
    """
    library = next(kind.__module__ for kind in client.__mro__ if kind.__name__ == "AsyncClient")
    return _context(library.partition(".")[0], *map(os.environ.get, _VARIABLES))


@lru_cache(maxsize=4)
def _context(library: str, *variables: str | None) -> ssl.SSLContext:
    del variables  # the library reads them
    return cast("ssl.SSLContext", import_module(library).create_ssl_context())


DEFAULT_BYTES = 32 * 1024 * 1024
_ERROR_BYTES = 1024 * 1024
"""Maximum bytes that are read of the body of an HTTP error; its message is in the first kilobyte."""
_PIECE_BYTES = 64
"""Cost of a short text beside its characters, so that a stream of tiny pieces cannot fill the memory."""

_CUTS_ERRORS: ContextVar[bool] = ContextVar("orchestrator_cuts_errors", default=False)


def check_limit(name: str, limit: int) -> int:
    """Return a limit of bytes. Raises ConfigError for a number below 0."""
    if type(limit) is not int or limit < 0:
        raise ConfigError(f"{name} is {limit!r}; possible: bytes, 1 or more, or 0 for no limit")
    return limit


def too_large(limit: int) -> LLMError:
    """Return the error of an answer that exceeds the limit. It contains nothing of the answer."""
    return LLMError(
        f"the provider's answer has more than {limit:,} bytes and was not read to its end; "
        "raise max_response_bytes of the model where such answers are expected (0 = no limit)",
        kind="malformed",
        retryable=False,  # a retry would exceed the limit again
    )


def kept_size(*pieces: str) -> int:
    """Return the approximate bytes of some texts in memory, 0 for empty ones."""
    return sum(_PIECE_BYTES + len(piece) for piece in pieces if piece)


async def body_of(beginning: bytes, chunks: AsyncIterator[bytes], limit: int) -> bytearray:
    """Return the beginning and all chunks as one. Raises LLMError as soon as they exceed the limit."""
    body = bytearray()
    chunk: bytes | None = beginning
    while chunk is not None:
        body += chunk
        if 0 < limit < len(body):
            raise too_large(limit)
        chunk = await anext(chunks, None)
    return body


# ---- bodies that the SDK reads itself ----


@contextmanager
def short_errors() -> Iterator[None]:
    """Cut the bodies of HTTP errors for the requests inside: the SDK reads them whole before it raises."""
    token = _CUTS_ERRORS.set(True)
    try:
        yield
    finally:
        _CUTS_ERRORS.reset(token)


def watch_errors(client: Any) -> None:
    """Make the HTTP client of an SDK's client apply `short_errors`; other requests through it are unchanged."""
    http = getattr(client, "_client", None)
    hooks = getattr(http, "event_hooks", None)
    if http is not None and hooks is not None and _cut not in hooks["response"]:
        http.event_hooks = {**hooks, "response": [*hooks["response"], _cut]}


async def _cut(response: Any) -> None:
    """End the body of an HTTP error after its first bytes: an event hook of the HTTP library."""
    if not (_CUTS_ERRORS.get() and response.is_error):
        return
    whole = response.aiter_bytes

    async def first(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = 0
        async with aclosing(whole(chunk_size)) as chunks:
            async for chunk in chunks:
                yield chunk
                size += len(chunk)
                if size >= _ERROR_BYTES:
                    return

    response.aiter_bytes = first


MASK = "**********"
_SHORTEST_FORM = 10
_CREDENTIALS = re.compile(r"(?i)\b(basic\s+)([a-z0-9+/_-]{6,}={0,2})")
_SECRET_NAME = re.compile(r"(?i)auth|key|token|secret|passw|cookie|credential|signature")
_BASE64_BLOCK = 3
_SKIPPED = (0, 2, 3)
"""Base64 characters that also hold bits of what precedes a secret, by the position of the secret in a block."""


class SecretMask:
    """Masks a fixed set of secrets in texts.

    Args:
        secrets: The secrets. Empty ones are ignored.

    Example:
        >>> SecretMask(["sk-live-0123456789"]).masked("Incorrect key sk-live-0123456789.")
        'Incorrect key **********.'
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if secret for form in _forms(secret)}
        # The longest first: the start of one form may be another.
        self._forms = sorted((form for form in forms if len(form) >= _SHORTEST_FORM), key=len, reverse=True)
        starts = "|".join(sorted({re.escape(form[:_SHORTEST_FORM]) for form in self._forms}))
        self._start = re.compile(starts) if starts else None

    def masked(self, text: str) -> str:
        """Return the text without the secrets, also where one was cut in the middle."""
        text = _CREDENTIALS.sub(_without_credentials, text)
        if self._start is None:
            return text
        shown: list[str] = []
        end = 0
        while (start := self._start.search(text, end)) is not None:
            at = start.start()
            shown += [text[end:at], MASK]
            end = at + max(_common_start(form, text, at) for form in self._forms)
        return "".join((*shown, text[end:]))

    def mask(self, error: LLMError) -> LLMError:
        """Remove the secrets from an error's texts and return the error.

        Its cause is dropped if its text has a secret: a traceback shows it.
        """
        error.args = tuple(self.masked(part) if isinstance(part, str) else part for part in error.args)
        cause = error.__cause__ or error.__context__
        while cause is not None:
            if self.masked(text := str(cause)) != text:
                error.__cause__ = error.__context__ = None
                break
            cause = cause.__cause__ or cause.__context__
        return error


def secrets_of_address(address: str) -> Iterator[str]:
    """Yield the secrets that the address of a server may have: its user and password, and the values of its query."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    credentials = f"{unquote(user)}:{unquote(password)}"
    yield unquote(password)
    if credentials != ":":
        yield credentials
        yield base64.b64encode(credentials.encode()).decode()  # as the header of each request has them
    for _, value in parse_qsl(parts.query):
        yield value


def secrets_of_environment() -> Iterator[str]:
    """Yield the values of the environment variables whose names say that they are secret."""
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name):
            yield value


def secrets_of_headers(headers: Mapping[str, object]) -> Iterator[str]:
    """Yield the values of the headers whose names say that they are secret, and without their scheme (`Bearer`)."""
    for name, value in headers.items():
        if isinstance(value, str) and _SECRET_NAME.search(name):
            yield value
            yield value.partition(" ")[2]


def _forms(secret: str) -> Iterator[str]:
    data = secret.encode(errors="surrogatepass")
    yield secret
    for escaped in (quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")):
        yield escaped
        yield re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), escaped)
    for ascii_only in (True, False):
        in_json = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield in_json
        yield in_json.replace("/", "\\/")
    yield html.escape(secret)
    yield data.hex()
    yield data.hex().upper()
    for position, skipped in enumerate(_SKIPPED):
        # The last block is left out unless it is whole: its characters depend on what follows.
        whole = (position + len(data)) // _BASE64_BLOCK * _BASE64_BLOCK - position
        if whole > 0:
            encoded = base64.b64encode(b"\0" * position + data[:whole])[skipped:].decode()
            yield encoded
            yield encoded.translate(str.maketrans("+/", "-_"))


def _without_credentials(match: re.Match[str]) -> str:
    """Return `Basic` with a mask if the word after it is the base64 form of a user and a password."""
    word = match[2].rstrip("=").translate(str.maketrans("-_", "+/"))
    # A text that was cut may end inside of a block.
    data = base64.b64decode(word[: len(word) // 4 * 4], validate=True)
    return f"{match[1]}{MASK}" if b":" in data else match[0]


def _common_start(form: str, text: str, at: int) -> int:
    """Return how many characters of a form the text has at a position."""
    there = text[at : at + len(form)]
    return next(
        (n for n, pair in enumerate(zip(form, there, strict=False)) if pair[0] != pair[1]), len(there)
    )


ClientT = TypeVar("ClientT")


class LoopClients(Generic[ClientT]):
    """Clients by event loop. Each is closed with its loop, or earlier by `aclose`.

    Args:
        new: Returns a new client.
        close: Closes one.
        spare: The client of the first loop, if it exists already.
    """

    def __init__(
        self,
        new: Callable[[], ClientT],
        close: Callable[[ClientT], Awaitable[object]],
        spare: ClientT | None = None,
    ) -> None:
        self._new = new
        self._close = close
        self._spare = spare
        self._own: dict[asyncio.AbstractEventLoop, _Own[ClientT]] = {}

    async def get(self) -> ClientT:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._own:
            for over in [one for one in self._own if one.is_closed()]:
                del self._own[over]
            client, self._spare = self._spare or self._new(), None
            self._own[loop] = _Own(client, self._kept(client))
            await anext(self._own[loop].lifetime)
        return self._own[loop].client

    async def aclose(self) -> None:
        """Close the client of the running loop; a later `get` opens a new one."""
        if (own := self._own.pop(asyncio.get_running_loop(), None)) is not None:
            await own.lifetime.aclose()

    def __len__(self) -> int:
        return len(self._own)

    async def _kept(self, client: ClientT) -> AsyncGenerator[None, None]:
        """Keep a client open until the generator is closed: by us, or by the loop, which closes its generators."""
        try:
            yield
        finally:
            await self._close(client)


class _Own(NamedTuple, Generic[ClientT]):
    """The client of a loop, and the generator that closes it."""

    client: ClientT
    lifetime: AsyncGenerator[None, None]


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


_PORTS = {"http": 80, "https": 443}


def server_of_address(address: str) -> tuple[str, int] | None:
    """Return host and port of an address; None if it has none.

    Example:
        >>> server_of_address("https://api.openai.com/v1/")
        ('api.openai.com', 443)
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (host, port) if host and port else None


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


class MissingKey(ConfigError):
    """There is no API key for a `vendor`; `variable` is where it can be set."""

    def __init__(self, vendor: str, variable: str) -> None:
        super().__init__(
            f"there is no API key for {vendor}: set {variable}, give api_key=…, or take a model that needs none, "
            f'Agent("demo"); {see_guide("providers")}'
        )
        self.vendor, self.variable = vendor, variable


def key_of(vendor: str, given: str | SecretStr | None, base_url: str | None) -> SecretStr:
    """Return the API key: the given one, else that of the vendor's variable. Raises ConfigError.

    An address that is not the vendor's own needs no key.
    """
    from pydantic import SecretStr

    prefix = vendor.upper()
    found = given if given is not None else os.environ.get(f"{prefix}_API_KEY") or None
    key = found.get_secret_value() if isinstance(found, SecretStr) else found
    if key is None:
        if not (base_url or os.environ.get(f"{prefix}_BASE_URL")):
            raise MissingKey(vendor, f"{prefix}_API_KEY")
        return SecretStr(_NO_KEY)
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("the API key is empty, or has characters that no HTTP header can have")
    return SecretStr(key)

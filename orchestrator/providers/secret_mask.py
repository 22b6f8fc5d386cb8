"""Remove secrets from errors: servers and proxies repeat the key, the address and the headers of a request.

A secret is masked in each form in which a server may repeat it: as it is, percent-encoded, with JSON or HTML escapes,
as hexadecimal digits and as base64, there also inside of a longer text (`Basic base64(user:password)`). The start of
a form is masked too, since servers and this package cut long messages. A form of fewer than 10 characters is not
masked: it would occur everywhere. Credentials after `Basic` are masked whether they are known or not.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from orchestrator.errors import LLMError

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

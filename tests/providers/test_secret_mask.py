"""Secrets in errors: masked in each form in which a server may repeat them."""

from __future__ import annotations

import base64
import html
import json
import traceback
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request
from orchestrator.providers import fault
from orchestrator.providers.anthropic import Anthropic
from orchestrator.providers.connection import MASK, SecretMask, secrets_of_address, secrets_of_headers
from orchestrator.providers.openai import OpenAI
from orchestrator.providers.pydantic_ai import PydanticAIModel
from orchestrator.providers.vendor_model import VendorModel
from tests.providers.loopback import Asked, Loopback, Reply, json_reply, stream_reply
from tests.tiers import examples

KEY = 'sk-"live"/+canary é 0123456789'

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "percent-encoded": lambda secret: quote(secret, safe=""),
    "percent-encoded in lower case": lambda secret: quote(secret, safe="").lower(),
    "as a form field": quote_plus,
    "with JSON escapes": lambda secret: json.dumps(secret)[1:-1],
    "with JSON escapes of slashes": lambda secret: json.dumps(secret)[1:-1].replace("/", "\\/"),
    "with HTML escapes": html.escape,
    "in hexadecimal digits": lambda secret: secret.encode().hex(),
    "in capital hexadecimal digits": lambda secret: secret.encode().hex().upper(),
    "in base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "in base64 for addresses": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "in base64 behind one byte": lambda secret: base64.b64encode(b":" + secret.encode()).decode(),
    "in base64 behind a user": lambda secret: base64.b64encode(b"bob:" + secret.encode() + b"\n").decode(),
    "in base64 behind two bytes": lambda secret: base64.b64encode(b"u:" + secret.encode() + b"!").decode(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_is_masked_in_each_form_alone_cut_and_repeated(form: Callable[[str], str]) -> None:
    text, mask = form(KEY), SecretMask([KEY])
    shown = mask.masked(f"<{text}> and <{text}>")
    assert shown.count(MASK) == 2
    assert text[4:-4] not in shown
    cut = mask.masked(f"HTTP 401: {text[:20]}")
    assert MASK in cut
    assert text[4:20] not in cut


@settings(max_examples=examples(200))
@given(secret=st.text(min_size=10), before=st.text(), after=st.text())
def test_no_text_around_a_secret_keeps_it(secret: str, before: str, after: str) -> None:
    assume(secret not in before + MASK + after)
    assert secret not in SecretMask([secret]).masked(f"{before}{secret}{after}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("authorization: Basic Ym9iOmh1bnRlcjI=", f"authorization: Basic {MASK}"),
        ("'authorization': 'basic Ym9iOmh1bnRlcjI'", f"'authorization': 'basic {MASK}'"),
        ("Basic authentication is required", "Basic authentication is required"),
        ("Basic realm=api", "Basic realm=api"),
        ("bad keys", "bad keys"),
    ],
)
def test_unknown_credentials_are_masked_and_words_stay(text: str, shown: str) -> None:
    assert SecretMask(["e", ""]).masked(text) == shown


def test_the_mask_applies_to_the_texts_of_an_error_and_leaves_its_kind() -> None:
    error = SecretMask([KEY]).mask(fault.of_answer(401, {}, {"error": {"message": "x" * 485 + KEY}}))
    assert KEY[:10] not in str(error)
    assert (error.kind, error.status) == ("auth", 401)


def test_addresses_and_headers_name_their_secrets() -> None:
    address = "https://bob:hunter%2F2@models.test/v1?api_key=abc%20def&x="
    assert [secret for secret in secrets_of_address(address) if secret] == [
        "hunter/2",
        "bob:hunter/2",
        "Ym9iOmh1bnRlci8y",
        "abc def",
    ]
    assert [*secrets_of_address("http://[")] == []
    headers = {"Authorization": "Bearer abc", "X-Api-Key": "def", "Accept": "text/plain"}
    assert [secret for secret in secrets_of_headers(headers) if secret] == ["Bearer abc", "abc", "def"]


KEYS = {"key": "sk-canary-0123456789", "gateway": "gateway-canary-0123456789", "user": "canary-of-user"}


async def models(address: str) -> AsyncIterator[VendorModel]:
    import openai

    host = address.removeprefix("http://")
    for known in (address, f"http://bob:{KEYS['user']}@{host}"):
        yield OpenAI("m", base_url=known, api_key=KEYS["key"])
        yield OpenAI("m", base_url=known, api_key=KEYS["key"], api="responses")
        yield Anthropic("m", base_url=known, api_key=KEYS["key"])
    yield PydanticAIModel("openai:m", base_url=address)  # pydantic-ai reads the key from the environment
    headers = {"X-Gateway-Token": KEYS["gateway"]}
    async with openai.AsyncOpenAI(base_url=address, api_key="none", default_headers=headers) as client:
        yield OpenAI("m", client=client)


def echo(request: Asked) -> Reply:
    """Answer as a debugging proxy: the headers of the request, in several forms."""
    text = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
    said = " ".join((text, quote(text), text.encode().hex(), base64.b64encode(text.encode()).decode()))
    if request.json.get("stream"):
        return stream_reply(f"data: {json.dumps({'error': {'message': said}})}\n\n")
    return json_reply({"error": {"message": said}}, 401)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_repeats_the_headers_of_a_request_discloses_nothing(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEYS["key"])
    monkeypatch.setattr(fault, "_LONGEST", 100_000)
    async with Loopback(echo) as server:
        async for model in models(f"{server.url}/v1"):
            request = Request(messages=(Message("user", "hi"),), on_delta=print if streamed else None)
            with pytest.raises(LLMError) as failure:
                await model.complete(request)
            shown = "".join(traceback.format_exception(failure.value))
            assert MASK in shown
            for secret in KEYS.values():
                for text in (secret, quote(secret), secret.encode().hex()):
                    assert text not in shown
                for start in ("", "x", "xx"):
                    inner = base64.b64encode(f"{start}{secret}".encode()).decode()[4:-4]
                    assert inner not in shown
            await model.aclose()

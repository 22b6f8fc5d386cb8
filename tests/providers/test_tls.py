"""The TLS context that clients share."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.providers import Anthropic, OpenAI
from orchestrator.providers.connection import shared_context


@pytest.mark.parametrize("model", [OpenAI, Anthropic])
def test_only_the_first_client_of_a_process_loads_certificates(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model("m", api_key="k")
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", None)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", None)
    model("m", api_key="k")


def test_the_context_checks_certificates_and_names() -> None:
    context = shared_context(httpx2.AsyncClient)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_other_certificates_are_loaded_when_their_variable_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    before = shared_context(httpx2.AsyncClient)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    among_none = shared_context(httpx2.AsyncClient)
    assert among_none.get_ca_certs() == []
    monkeypatch.delenv("SSL_CERT_DIR")
    assert shared_context(httpx2.AsyncClient) is before is not among_none

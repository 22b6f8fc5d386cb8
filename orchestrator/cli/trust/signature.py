"""The run signature: proof that this user started a run on this host.

With each run that the command line starts goes an HMAC of what it was started with, under a key that is part of the
state of this user (see `state`). The signature goes with the run through a restart, into a moved folder, into
PostgreSQL. Without a place for a key nothing is signed, and resuming takes `--trust`.

Rejected: a list of the user's journals (it grows, and one run of the user in an untrusted journal would make all runs
of it trusted); the inode or attributes of the file (a checkout reuses the one, an archive carries the other); asking
only for addresses that are not the vendor's (tools, programs and the folder of a forged run do more than an address).

A signature covers how a run was started, not its records. A person who can write to a journal can change what its runs
say: such a run uses only models and programs that the user named, but with the calls of that person.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.cli.trust.state import read_state, write_state

SIGNATURE = "signature"
"""Member of a launch."""
KEY = "signature.key"
_EARLIER = "seal"
"""Name of the member, and with `.key` of the key, in earlier versions: their runs stay the user's own."""
_BYTES = 32


def signed(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored with a run that this user starts, or allowed."""
    plain = _unsigned(launch)
    key = write_state(KEY, secrets.token_bytes(_BYTES), replace=False)  # perhaps that of another process
    if key is None or len(key) != _BYTES:  # a damaged key proves nothing
        return plain
    return {**plain, SIGNATURE: _signature(plain, key)}


def is_own(launch: object) -> bool:
    """Return whether this user signed what is stored with a run, on this host."""
    if not isinstance(launch, Mapping):
        return False
    signature = launch.get(SIGNATURE, launch.get(_EARLIER))
    if not isinstance(signature, str) or not signature.isascii():
        return False
    plain = _unsigned(launch)
    try:
        return any(hmac.compare_digest(signature, _signature(plain, key)) for key in _keys())
    except RecursionError:  # no launch of ours is that deep
        return False


def _unsigned(launch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in launch.items() if name not in {SIGNATURE, _EARLIER}}


def _signature(plain: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _keys() -> Iterator[bytes]:
    for name in (KEY, f"{_EARLIER}.key"):
        yield from (key for key in read_state(name) if len(key) == _BYTES)

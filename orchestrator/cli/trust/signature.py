"""The run signature: proof that this user started a run on this host.

Each run that the command line starts stores an HMAC of its launch, under a key that is part of the state of this user
(see `state`). The signature stays valid after a restart, in a moved folder, and in PostgreSQL. Without a place
for a key nothing is signed, and resuming takes `--trust`.

Rejected: a list of the user's journals (it grows, and one run of the user in an untrusted journal would make all runs
of it trusted); the inode or attributes of the file (a checkout reuses the one, an archive carries the other); asking
only for addresses that are not the vendor's (tools, programs and the folder of a forged run do more than an address).

A signature covers how a run was started, not its records. A person who can write to a journal can change the records
of its runs: such a run uses only models and programs that the user named, but with the calls of that person.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any

from orchestrator.cli.trust.state import read_state, write_state

SIGNATURE = "signature"
"""Member of a launch."""
KEY = "signature.key"
_EARLIER = "seal"
"""Name of the member, and with `.key` of the key, in earlier versions: their runs remain trusted."""
_BYTES = 32


def signed(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data that is stored with a run that this user starts, or allowed."""
    plain = _unsigned(launch)
    key = write_state(KEY, secrets.token_bytes(_BYTES), replace=False)  # perhaps that of another process
    if key is None or len(key) != _BYTES:  # a damaged key proves nothing
        return plain
    return {**plain, SIGNATURE: _signature(plain, key)}


def is_own(launch: object) -> bool:
    """Return whether this user signed the stored launch of a run, on this host."""
    if not isinstance(launch, Mapping):
        return False
    signature = launch.get(SIGNATURE, launch.get(_EARLIER))
    if not isinstance(signature, str) or not signature.isascii():
        return False
    plain = _unsigned(launch)
    keys = (key for name in (KEY, f"{_EARLIER}.key") for key in read_state(name) if len(key) == _BYTES)
    try:
        return any(hmac.compare_digest(signature, _signature(plain, key)) for key in keys)
    except RecursionError:  # no launch of ours is that deep
        return False


def _unsigned(launch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in launch.items() if name not in {SIGNATURE, _EARLIER}}


def _signature(plain: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

"""Write plain data as readable YAML: rule files, tests, manifests. It needs no library.

The form is block style, keys in the given order, text over several lines as a literal block. Any other text that YAML
could misread is quoted as in JSON, which is a subset of YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Data: TypeAlias = "bool | int | float | str | Sequence[Data] | Mapping[str, Data] | None"

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./:=()-]*(?: [A-Za-z0-9_./=()-]+)*\Z")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf", ".nan"))


def yaml(data: Data, *, note: str = "") -> str:
    """Return a document, with `note` as its first comment."""
    top = "".join(f"# {line}\n" for line in note.splitlines())
    return top + "\n".join(_block(data, 0)) + "\n"


def _block(data: Data, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if not _nested(data):
        yield indent + _scalar(data)
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _entry(f"{indent}{_scalar(key)}:", value, depth)
    elif isinstance(data, Sequence) and not isinstance(data, str):
        for value in data:
            inner = (
                list(_block(value, depth + 1)) if _nested(value) else [f"{indent}  {_text(value, depth + 1)}"]
            )
            yield f"{indent}- {inner[0].lstrip()}"
            yield from inner[1:]


def _entry(head: str, value: Data, depth: int) -> Iterator[str]:
    if _nested(value):
        yield head
        yield from _block(value, depth + 1)
    else:
        yield f"{head} {_text(value, depth + 1)}"


def _nested(value: Data) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _text(value: Data, depth: int) -> str:
    if isinstance(value, str) and "\n" in value and not value[0].isspace() and not value.endswith("\n\n"):
        keep = "|" if value.endswith("\n") else "|-"
        lines = value.removesuffix("\n").split("\n")
        return "\n".join([keep, *("  " * depth + line if line else "" for line in lines)])
    return _scalar(value)


def _scalar(value: Data) -> str:
    if isinstance(value, str):
        plain = _PLAIN.match(value) and value.lower() not in _WORDS and not value.endswith(":")
        return value if plain and ": " not in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, Sequence):
        return "[]"
    return json.dumps(value)

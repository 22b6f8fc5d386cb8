"""Read the JSON of a provider's answer: a reader returns the found value, and an empty one for another type.

Answers are read as JSON, not as the SDK's types: those describe one vendor's answers, and compatible servers send
more members, fewer and different ones. If a required member is missing, `malformed` gives the error.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from orchestrator.errors import LLMError
from orchestrator.llm.message import Response, ToolCall, Usage, encodable
from orchestrator.llm.usage import is_amount
from orchestrator.providers.member import token_count
from orchestrator.providers.recording import usage_from

_MOST_DIGITS = 9


class RepeatedNames(dict[str, Any]):
    """A JSON object with a duplicate name. As a dict it has the last value; written as JSON it is the original."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        """Return all pairs as received: `json.dumps` writes these."""
        return self._pairs


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else RepeatedNames(pairs)


_DECODER = json.JSONDecoder(parse_constant=lambda _: None, object_pairs_hook=_members)


def parsed(content: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text. NaN and Infinity, which some servers write, become null.

    Some providers send the arguments of a call as an object, not as text. If it has a duplicate name, `arguments`
    writes the duplicate again, and the call is refused like one that arrived as text.

    Raises ValueError for invalid JSON, and for a number with more digits than Python reads; RecursionError for deep
    nesting.
    """
    if not isinstance(content, str):
        content = content.decode(json.detect_encoding(content), "surrogatepass")
    return _DECODER.decode(content.removeprefix("\ufeff"))


def malformed(why: str, partial: str = "") -> LLMError:
    """Return the error of an invalid answer."""
    return LLMError(f"the provider sent no valid answer: {why}", kind="malformed", partial=partial)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Mapping[str, Any]]:
    """Return the JSON objects in a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def text_or_none(value: object) -> str | None:
    """Return text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def text(value: object) -> str:
    """Return text, empty for anything else."""
    return value if isinstance(value, str) else ""


def usage(value: object) -> Usage | None:
    """Return the usage of an answer in any form of OpenAI's family; None if it does not have both counts.

    Some servers omit the output tokens of an answer without text, and give the total.
    """
    if not isinstance(value, Mapping) or not value:
        return None
    raw = {
        name: member
        for name, member in value.items()
        if name != "cost" and (not name.endswith("_details") or isinstance(member, Mapping))
    }
    found = usage_from(raw, _cost(value.get("cost")))
    output = (token_count(raw.get(name)) for name in ("completion_tokens", "output_tokens"))
    if any(count is not None for count in output):
        return found
    total = token_count(raw.get("total_tokens"))
    return None if total is None else replace(found, output_tokens=max(0, total - found.input_tokens))


def _cost(value: object) -> float | None:
    """Return the cost that a server reports: a number (OpenRouter), or an object with the total (Perplexity)."""
    cost = value.get("total_cost") if isinstance(value, Mapping) else value
    return cost if is_amount(cost) else None


def is_reported(response: Response) -> bool:
    """Return whether the usage of an answer can be true: every request has input, every text and call is output."""
    reported = response.usage
    if reported is None or not reported.input_tokens:
        return False
    return bool(reported.output_tokens or not (response.content or response.tool_calls or response.reasoning))


def position_of(value: object) -> int | None:
    """Return an index, which some servers write as text; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and value.isascii():
        return int(value) if len(value) <= _MOST_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def arguments(value: object) -> str:
    """Return the arguments of a call as JSON text: as received, empty for null; an object is written as text."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def tool_call(id_: object, name: object, given: object) -> ToolCall:
    """Return a call from its parts in a provider's answer."""
    return ToolCall(text(id_), text(name), arguments(given))


def merged(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts with adjacent texts joined: Anthropic splits a sentence where it cites."""
    found: list[dict[str, Any]] = []
    for is_text, group in itertools.groupby(parts, lambda part: part.get("type") == "text"):
        together = list(group)
        found += [_one_text(together)] if is_text else together
    return found


def _one_text(parts: list[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1:
        return parts[0]
    cited = [citation for part in parts for citation in part.get("citations") or ()]
    members = {name: value for part in reversed(parts) for name, value in part.items()}
    said = "".join(text(part.get("text")) for part in parts)
    return {**members, "text": said, **({"citations": cited} if cited else {})}


def storable(response: Response) -> Response:
    """Return an answer that a journal can store. Raises LLMError for parts with deep nesting or too large numbers.

    Parts are stored unchanged; everything else is text and counts.
    """
    if isinstance(response.content, list):
        try:
            orjson.dumps(encodable(response.content))
        except (TypeError, RecursionError) as error:
            raise malformed(f"its content cannot be stored ({error})") from error
    return response

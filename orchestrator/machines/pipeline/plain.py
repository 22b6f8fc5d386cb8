"""Data as a journal keeps it: what a run has now is what it has after a crash."""

from __future__ import annotations

from typing import Any

import orjson


def plain_json(value: Any) -> Any:
    """Return data as JSON types: models and tuples become dicts and lists, what is no number becomes None.

    Raises ValueError for what JSON has no form for: an object, a number beyond 64 bits, half a surrogate pair.
    """
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return orjson.loads(orjson.dumps(to_jsonable_python(value)))
    except (PydanticSerializationError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None

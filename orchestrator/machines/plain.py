"""Conversion to JSON types, so that a run has the same data before and after a crash."""

from __future__ import annotations

from typing import Any

import orjson


def plain_json(value: Any) -> Any:
    """Return data as JSON types: models and tuples become dicts and lists, NaN and infinity become None.

    Raises ValueError for data without a JSON form: an object, a number beyond 64 bits, a lone surrogate.
    """
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return orjson.loads(orjson.dumps(to_jsonable_python(value)))
    except (PydanticSerializationError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None

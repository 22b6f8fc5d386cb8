"""The validator, as a program: reads the request as JSON, prints the issues of the plan as JSON."""

from __future__ import annotations

import json
import keyword
import sys
from collections.abc import Iterator
from typing import Any


def issues(spec: dict[str, Any], plan: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the issues of a plan: missing functions, invalid names, examples without a check."""
    planned = {function["name"]: function for function in plan["functions"]}
    if len(planned) < len(plan["functions"]):
        yield {"severity": "error", "where": plan["module"], "message": "a function is planned twice"}
    for wanted in spec["functions"]:
        name, count = wanted["name"], len(wanted["examples"])
        if name not in planned:
            yield {"severity": "error", "where": name, "message": "is not planned"}
            continue
        if not name.isidentifier() or keyword.iskeyword(name):
            yield {"severity": "error", "where": name, "message": "is no name for a function"}
        missing = count - len(set(planned[name]["checks"]) & set(range(count)))
        if missing:
            message = f"{missing} of {count} examples are not checked"
            yield {"severity": "error", "where": name, "message": message}
        if not wanted.get("summary"):
            yield {"severity": "warning", "where": name, "message": "has no summary"}


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    json.dump({"issues": list(issues(request["spec"], request["plan"]))}, sys.stdout)


if __name__ == "__main__":
    main()

"""A server over standard input and output that answers each tool in its own way: raw JSON-RPC, no SDK.

    mcp_answers.py FOLDER [LIST]

It notes each call as a line of `calls` in FOLDER. LIST is the way in which it lists its tools: "again" repeats a
cursor, "refuses" answers the first request of a session with the error -32000.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER, LIST = Path(sys.argv[1]), [*sys.argv, "plain"][2]
ANY: dict[str, Any] = {"type": "object"}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
PURE = {"readOnlyHint": True}
TOOLS: list[dict[str, Any]] = [
    {"name": "closed", "inputSchema": ANY, "annotations": PURE},
    {"name": "timeout", "inputSchema": ANY},
    {"name": "dies", "inputSchema": ANY},
    {"name": "misfit", "inputSchema": ANY, "outputSchema": NUMBER},
    {"name": "form", "inputSchema": ANY},
    {"name": "surrogate", "inputSchema": ANY},
    {"name": "nan", "inputSchema": ANY},
    {"name": "deep", "inputSchema": ANY},
    {"name": "deep_last", "inputSchema": ANY},
    {"name": "deep_text", "inputSchema": ANY},
    {"name": "prints", "inputSchema": ANY},
    {"name": "long_" + "x" * 60 + "_read", "inputSchema": ANY},
    {"name": "long_" + "x" * 60 + "_write", "inputSchema": ANY},
    {"name": "dangling", "inputSchema": {**ANY, "properties": {"a": {"$ref": "#/$defs/Gone"}}}},
]


def line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write(message: dict[str, Any]) -> None:
    line(json.dumps({"jsonrpc": "2.0", **message}))


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def answer(number: int, name: str) -> None:
    """Answer a call of a tool."""
    nested = "[" * 5_000 + "]" * 5_000
    content = f'{{"content": [], "structuredContent": {{"a": {nested}}}}}'
    match name:
        case "closed" | "timeout":
            code = -32000 if name == "closed" else -32001
            write({"id": number, "error": {"code": code, "message": "Rate limit: try in 10 s"}})
        case "dies":
            os._exit(1)
        case "misfit":
            write({"id": number, "result": text("7", structuredContent={"n": "seven"})})
        case "form":
            write({"id": number, "result": {"content": "text"}})
        case "surrogate":
            write({"id": number, "result": text("facture-\udce9.pdf", structuredContent={"a": "\udce9"})})
        case "nan":
            line(
                f'{{"jsonrpc":"2.0","id":{number},"result":{{"content":[],"structuredContent":{{"a":NaN}}}}}}'
            )
        case "deep":
            line(f'{{"jsonrpc": "2.0", "id": {number}, "result": {content}}}')
        case "deep_last":
            line(f'{{"result": {content}, "id": {number}, "jsonrpc": "2.0"}}')
        case "deep_text":
            write({"id": number, "result": text(nested)})
        case "prints":
            for count in range(50):
                line(f"step {count} of the job")
            line('{"level": "info", "id": 1}')
            write({"id": number, "result": text("printed")})
        case _:
            write({"id": number, "result": text(f"{name[-5:]} answers")})


def listed(cursor: str | None) -> dict[str, Any]:
    """Return a page of the tools."""
    if LIST != "again":
        return {"tools": TOOLS}
    return {"tools": TOOLS[:2] if cursor is None else TOOLS[2:4], "nextCursor": "2"}


def main() -> None:
    for raw in sys.stdin:
        request = json.loads(raw)
        number, method, params = request.get("id"), request.get("method"), request.get("params") or {}
        if number is None:
            continue
        if LIST == "refuses":
            write({"id": number, "error": {"code": -32000, "message": "The license has expired"}})
        elif method == "initialize":
            info = {"name": "answers", "version": "1"}
            told = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "prompts": {}},
                "serverInfo": info,
            }
            write({"id": number, "result": told})
        elif method == "tools/list":
            write({"id": number, "result": listed(params.get("cursor"))})
        elif method == "prompts/list":
            page = {"prompts": [{"name": f"prompt {params.get('cursor')}"}], "nextCursor": "2"}
            write({"id": number, "result": page})
        elif method == "tools/call":
            with (FOLDER / "calls").open("a") as out:
                out.write(f"{params['name']}\n")
            answer(number, params["name"])
        else:
            write({"id": number, "error": {"code": -32601, "message": "Method not found"}})


main()

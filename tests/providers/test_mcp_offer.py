"""What a server says of its tools and answers to a call is untrusted: it is cleaned, bounded, or refused by name."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from typing import Any

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolExecution,
)
from pydantic import SecretStr

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.llm.message import KINDS, audio_part, file_part, image_part
from orchestrator.providers.mcp import McpServer
from orchestrator.providers.mcp.answer import Reader, ToolFailed, content_of
from orchestrator.providers.mcp.offer import ServerTool, ToolChoice, declared, effect_of


def tool(name: str, about: str | None = None, schema: dict[str, Any] | None = None, **hints: bool) -> Tool:
    annotations = ToolAnnotations(**hints) if hints else None
    return Tool(
        name=name, description=about, input_schema=schema or {"type": "object"}, annotations=annotations
    )


def offered(*tools: Tool, **options: Any) -> tuple[ServerTool, ...]:
    choice = ToolChoice.of(options)
    choice.check("shop", [one.name for one in tools])
    return declared(tools, choice)[0]


def left_out(*tools: Tool) -> list[str]:
    """The reasons why tools are not offered."""
    return [f"{one.theirs}: {one.why}" for one in declared(tools, ToolChoice())[1]]


@pytest.mark.parametrize(
    ("hints", "effect"),
    [
        (None, "irreversible"),
        ({}, "irreversible"),
        ({"read_only_hint": True}, "pure"),
        ({"read_only_hint": False}, "irreversible"),
        ({"idempotent_hint": True}, "idempotent"),
        ({"idempotent_hint": True, "destructive_hint": False}, "idempotent"),
        ({"idempotent_hint": True, "destructive_hint": True}, "irreversible"),
        ({"destructive_hint": True}, "irreversible"),
        ({"destructive_hint": False}, "irreversible"),
        ({"read_only_hint": True, "destructive_hint": True}, "irreversible"),
        ({"read_only_hint": True, "destructive_hint": False, "idempotent_hint": False}, "pure"),
    ],
)
def test_annotations_become_an_effect_class(hints: dict[str, bool] | None, effect: str) -> None:
    assert effect_of(None if hints is None else ToolAnnotations(**hints)) == effect


def test_the_host_overrules_annotations_for_one_tool_or_for_all() -> None:
    tools = (tool("a", read_only_hint=True), tool("b", idempotent_hint=True), tool("c"))
    assert [one.effect for one in offered(*tools, effects={"c": "pure"})] == ["pure", "idempotent", "pure"]
    assert [one.effect for one in offered(*tools, effects="irreversible")] == ["irreversible"] * 3


def test_names_get_a_prefix_and_only_characters_that_models_may_send() -> None:
    (one, two) = offered(tool("files/read.all"), tool("x" * 128), prefix="fs_")
    assert (one.name, one.theirs) == ("fs_files_read_all", "files/read.all")
    assert (two.name, two.theirs) == ("fs_" + "x" * 61, "x" * 128)


def test_descriptions_lose_what_nobody_sees_and_what_is_too_long() -> None:
    hidden = "Reads\x1b[31m a\u202e file.\nFast\x00\U000e0041!\ud800"
    (one, two) = offered(tool("a", hidden), tool("b", "y" * 5_000))
    assert one.description == "Reads[31m a file.\nFast!"
    assert two.description == "y" * 1_023 + "…"


def test_texts_inside_a_schema_are_cleaned_and_data_is_left_alone() -> None:
    schema = {
        "type": "object",
        "properties": {
            "description": {"type": "string", "description": "The\x07 text", "default": "\x07"},
            "kind": {"anyOf": [{"title": "K\x07ind", "enum": [{"title": "\x07"}]}]},
        },
    }
    (one,) = offered(tool("a", schema=schema))
    assert one.parameters["properties"] == {
        "description": {"type": "string", "description": "The text", "default": "\x07"},
        "kind": {"anyOf": [{"title": "Kind", "enum": [{"title": "\x07"}]}]},
    }


def test_include_and_exclude_choose_by_the_servers_own_names() -> None:
    tools = (tool("a"), tool("b"), tool("c"))
    assert [one.name for one in offered(*tools, include=["c", "a"], prefix="p_")] == ["p_a", "p_c"]
    assert [one.name for one in offered(*tools, exclude=["a"])] == ["b", "c"]
    assert [one.name for one in offered(*tools, include="a")] == ["a"]
    assert offered(*tools, include=()) == ()


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            {"include": ["serch"]},
            "MCP server 'shop' has no tool 'serch', named in include; did you mean 'search'?",
        ),
        ({"exclude": ["zzz"]}, "MCP server 'shop' has no tool 'zzz', named in exclude; it has 2 others"),
        (
            {"effects": {"zzz": "pure"}},
            "MCP server 'shop' has no tool 'zzz', named in effects; it has 2 others",
        ),
        (
            {"effects": {"pay": "compensable"}},
            "an effect of an MCP tool is 'compensable'; possible: 'pure', 'idempotent', 'irreversible'",
        ),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(chosen: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        offered(tool("search"), tool("pay"), **chosen)
    assert str(caught.value) == said


@pytest.mark.parametrize("pair", [("a.b", "a/b"), ("Pay", "pay"), ("pay", "pay"), ("x" * 70, "x" * 70)])
def test_the_second_of_two_tools_with_one_name_is_left_out(pair: tuple[str, str]) -> None:
    tools = [*map(tool, pair), tool("other")]
    assert [one.theirs for one in offered(*tools)] == [pair[0], "other"]
    (why,) = left_out(*tools)
    assert why.startswith(f"{pair[1]}: its name would be ")


@pytest.mark.parametrize("prefix", ["", "shop_"])
def test_names_that_are_cut_alike_get_a_digest_in_any_order_and_no_other_name_changes(prefix: str) -> None:
    names = ["y" * 70, "x" * 70 + "1", "X" * 70 + "2", "x" * 70 + "/", "other"]
    found = {one.theirs: one.name for one in offered(*map(tool, names), prefix=prefix)}
    again = {one.theirs: one.name for one in offered(*map(tool, reversed(names)), prefix=prefix)}
    assert found == again
    assert [*found] == names
    assert len({name.casefold() for name in found.values()}) == len(names)
    assert (found["y" * 70], found["other"]) == ((prefix + "y" * 70)[:64], f"{prefix}other")
    assert [len(found[name]) for name in names[:4]] == [64] * 4
    exact = "x" * 64
    assert next(one.name for one in offered(*map(tool, (exact, "x" * 70)))) == exact


def test_a_schema_of_absurd_size_and_a_tool_that_needs_a_task_are_left_out() -> None:
    large = tool("a", schema={"type": "object", "description": "z" * 100_000})
    task = tool("b").model_copy(update={"execution": ToolExecution(task_support="required")})
    one, two = left_out(large, task, tool("c"))
    assert re.fullmatch(r"a: its schema has 100,0\d\d bytes, and at most 65,536 are read", one)
    assert two == "b: it runs only as a task, which this client does not support"


@pytest.mark.parametrize(
    ("said", "structured", "text"),
    [
        (["5"], {"result": 5}, "5"),
        (["five"], {"result": "five"}, "five"),
        (['{"a":1}'], {"a": 1}, '{"a":1}'),
        (['{\n  "a": 1\n}'], {"a": 1}, '{\n  "a": 1\n}'),
        (["1", "2"], {"result": [1, 2]}, "1\n2"),
        (["a", "b"], {"result": ["a", "b"]}, "a\nb"),
        (["two found"], {"found": [1, 2]}, 'two found\n{"found":[1,2]}'),
        ([], {"found": []}, '{"found":[]}'),
        (["true"], {"result": 1}, 'true\n{"result":1}'),
        (["10 found"], {"found": 1}, '10 found\n{"found":1}'),
        (["done"], {"ok": True, "said": "done"}, '{"ok":true,"said":"done"}'),
        (["the file\n" * 900], {"content": "the file\n" * 900}, "the file\n" * 900),
        (["plain"], None, "plain"),
        ([], None, ""),
    ],
)
def test_the_model_reads_each_value_of_a_result_once(said: list[str], structured: Any, text: str) -> None:
    content = [TextContent(type="text", text=one) for one in said]
    assert content_of(CallToolResult(content=[*content], structured_content=structured)) == text


def test_images_recordings_and_documents_are_parts_if_the_model_reads_them_and_they_are_not_too_large() -> (
    None
):
    data = base64.b64encode(bytes(300)).decode()
    blob = BlobResourceContents(uri="file:///a/report.pdf", blob=data, mime_type="application/pdf")
    odd = BlobResourceContents(uri="file:///a.bin", blob=data, mime_type="application/zip")
    result = CallToolResult(
        content=[
            TextContent(type="text", text="one"),
            TextContent(type="text", text="two"),
            ImageContent(type="image", data=data, mime_type="image/PNG"),
            AudioContent(type="audio", data=data, mime_type="audio/mpeg"),
            EmbeddedResource(type="resource", resource=blob),
            EmbeddedResource(type="resource", resource=odd),
            ImageContent(type="image", data="no base64!", mime_type="image/png"),
        ],
        structured_content={"image": data},
    )
    content = content_of(result)
    assert isinstance(content, list)
    text, image, audio, file, *rest = content
    assert text == "one\ntwo"
    assert image == image_part(bytes(300), "image/png")
    assert audio == audio_part(bytes(300), "mp3")
    assert file == file_part(bytes(300), "application/pdf", "report.pdf")
    assert rest == [
        "[resource file:///a.bin application/zip, 300 bytes, not shown]\n[image image/png, 7 bytes, not shown]"
    ]
    for reader in (Reader(KINDS[:1]), Reader(max_bytes=299)):
        plain = content_of(result, reader)
        assert isinstance(plain, str)
        assert "[image image/PNG, 300 bytes, not shown]" in plain
        assert data not in plain


def test_an_error_of_the_tool_is_raised_with_its_text_or_says_that_there_is_none() -> None:
    with pytest.raises(ToolFailed, match=r"^no such file$"):
        content_of(CallToolResult(content=[TextContent(type="text", text="no such file")], is_error=True))
    with pytest.raises(ToolFailed, match=r"^the tool failed without a reason$"):
        content_of(CallToolResult(content=[], is_error=True))
    seen = [
        TextContent(type="text", text="the page shows an error"),
        ImageContent(type="image", data=base64.b64encode(bytes(300)).decode(), mime_type="image/png"),
    ]
    with pytest.raises(
        ToolFailed, match=r"^the page shows an error\n\[image image/png, 300 bytes, not shown\]$"
    ):
        content_of(CallToolResult(content=[*seen], is_error=True))


@pytest.mark.parametrize(
    "url", ["ftp://x/mcp", "http://", "localhost:8000/mcp", "http://[::1/mcp", "", "http://x:99999/"]
)
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of an MCP server"):
        McpServer.http(url)


@pytest.mark.parametrize("command", ["", "  ", "a\0b"])
def test_what_is_no_command_is_refused_at_once(command: str) -> None:
    with pytest.raises(ConfigError, match="is not a command that can be started"):
        McpServer.stdio(command)


def test_one_text_is_an_address_or_a_command_line() -> None:
    assert McpServer.parse("https://tools.example/mcp").name == "tools.example"
    assert McpServer.parse("/opt/bin/files --root '/srv/my files'").name == "files"
    with pytest.raises(ConfigError, match=r"is not a command line: No closing quotation"):
        McpServer.parse("files 'half")


@pytest.mark.parametrize("option", ["timeout", "connect_timeout"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_cannot_be_switched_off(option: str, value: float) -> None:
    options: Any = {option: value}
    with pytest.raises(ConfigError, match=f"^{option} is .*; possible: seconds above 0$"):
        McpServer.stdio("server", **options)


def test_tools_are_not_there_before_the_server_is_connected_and_secrets_are_not_shown() -> None:
    server = McpServer.http(
        "http://u:hunter2@x/mcp?key=hunter2", headers={"Authorization": SecretStr("hunter2")}
    )
    assert "hunter2" not in repr(server)
    with pytest.raises(ConfigError, match="is not connected; use `async with` before its tools"):
        _ = server.tools


async def test_without_the_extra_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fsm-orchestrator\[mcp\]'"):
        async with McpServer.stdio("true"):
            pytest.fail("there is no SDK")


def test_naming_a_server_loads_no_sdk() -> None:
    told = "from orchestrator.providers.mcp import McpServer; McpServer.parse('server --now')"
    loaded = f"import sys; {told}; print({{'mcp', 'mcp_types', 'anyio', 'httpx2'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_a_tool_with_a_pattern_that_is_not_linear_is_left_out_and_the_server_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string", "pattern": "^(?!/)"}}}
    server = McpServer.stdio("shop")
    (kept,) = server._declare([tool("read", schema=schema), tool("list")])
    assert kept.name == "list"
    (line,) = caplog.messages
    assert line.startswith("MCP server 'shop': tool 'read' is not offered: ")
    assert "'^(?!/)' at properties.path.pattern uses look-around" in line


def test_a_tool_with_a_bad_schema_is_left_out_and_the_server_stays(caplog: pytest.LogCaptureFixture) -> None:
    server = McpServer.stdio("shop")
    (kept,) = server._declare([tool("read", schema={"type": "objekt"}), tool("list")])
    assert kept.name == "list"
    (line,) = caplog.messages
    assert line.startswith("MCP server 'shop': tool 'read' is not offered: ")


def test_a_limit_of_messages_that_is_none_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="max_message_bytes is -1; possible: bytes, 1 or more, or 0 for no limit"
    ):
        McpServer.stdio("shop", max_message_bytes=-1)

"""The loopback server refuses what the servers of vendors refuse: each rule has a request that breaks it alone."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.providers.loopback import Loopback, json_reply
from tests.providers.strict import Vendor, VendorName

USER = {"role": "user", "content": "Add two and two."}


def call(id_: Any = "c1", name: Any = "add", **more: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}, **more}


def said(*calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*calls], **more}


def result(id_: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": "4"}


def signed(signature: str) -> dict[str, Any]:
    return {"extra_content": {"google": {"thought_signature": signature}}}


CHAT: dict[str, tuple[VendorName, list[Any], str | None]] = {
    "a call and its result": ("", [USER, said(call()), result()], None),
    "no message": ("", [], "too short"),
    "an empty id": ("", [USER, said(call("")), result("")], "Invalid 'messages[1].tool_calls.id'"),
    "a repeated id": ("", [USER, said(call(), call()), result(), result()], "Duplicate value"),
    "a long id": ("openai", [USER, said(call("c" * 41)), result("c" * 41)], "string too long"),
    "a name with a dot": ("", [USER, said(call(name="functions.add")), result()], "function.name"),
    "a name with a blank": ("", [USER, said(call(name="add two")), result()], "function.name"),
    "no name": ("", [USER, said(call(name=None)), result()], "function.name"),
    "a long name": ("", [USER, said(call(name="x" * 65)), result()], "function.name"),
    "a name with a digit first": ("gemini", [USER, said(call(name="2x")), result()], "function.name"),
    "no result": ("", [USER, said(call()), USER], "must be followed by tool messages"),
    "no result at the end": ("", [USER, said(call())], "without a response at the end"),
    "a result without a call": ("", [USER, result()], "must be a response to a preceding message"),
    "two results": (
        "",
        [USER, said(call()), result(), result()],
        "must be a response to a preceding message",
    ),
    "a member of another vendor": ("openai", [USER, said(call(), reasoning_content="")], "Unknown parameter"),
    "a member of a call": ("openai", [USER, said(call(**signed("s"))), result()], "Unknown parameter"),
    "no signature": ("gemini", [USER, said(call()), result()], "missing a thought_signature"),
    "a signature": ("gemini", [USER, said(call(**signed("s"))), result()], None),
    "no signature in an earlier turn": ("gemini", [USER, said(call()), result(), USER], None),
    "a signature of the first call": (
        "gemini",
        [USER, said(call(**signed("s")), call("c2")), result(), result("c2")],
        None,
    ),
    "no reasoning": ("deepseek", [USER, said(call()), result(), USER], "Missing `reasoning_content`"),
    "empty reasoning": ("deepseek", [USER, said(call(), reasoning_content=""), result()], None),
}


@pytest.mark.parametrize("name", CHAT)
def test_chat_completions_are_refused_as_their_vendor_refuses_them(name: str) -> None:
    vendor, messages, refusal = CHAT[name]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    body = {"model": "m", "messages": messages, "tools": tools}
    found = Vendor(vendor).refusal("/v1/chat/completions", body)
    assert (found is None) if refusal is None else (found is not None and refusal in found)


def use(id_: str = "c1", name: str = "add", given: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": {} if given is None else given}


def answer(id_: str = "c1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": "4"}


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": [*blocks]}


TEXT = {"type": "text", "text": "Add."}
MESSAGES: dict[str, tuple[list[Any], str | None]] = {
    "a call and its result": ([turn("user", TEXT), turn("assistant", use()), turn("user", answer())], None),
    "the assistant first": ([turn("assistant", TEXT)], "first message"),
    "a role twice": ([turn("user", TEXT), turn("user", TEXT)], None),
    "a system message": ([turn("user", TEXT), turn("system", TEXT)], "role"),
    "no result": ([turn("user", TEXT), turn("assistant", use()), turn("user", TEXT)], "immediately after"),
    "a result without a call": ([turn("user", answer())], "immediately after"),
    "text before the result": (
        [turn("user", TEXT), turn("assistant", use()), turn("user", TEXT, answer())],
        "must come first",
    ),
    "an odd id": (
        [turn("user", TEXT), turn("assistant", use("c.1")), turn("user", answer("c.1"))],
        "pattern",
    ),
    "an id of an earlier turn": (
        [turn("user", TEXT), *(turn("assistant", use()), turn("user", answer())) * 2],
        "must be unique",
    ),
    "an odd name": (
        [turn("user", TEXT), turn("assistant", use(name="a b")), turn("user", answer())],
        "pattern",
    ),
    "text as input": (
        [turn("user", TEXT), turn("assistant", use(given="x")), turn("user", answer())],
        "dictionary",
    ),
    "a blank text": ([turn("user", {"type": "text", "text": " "})], "must contain text"),
    "thinking without a signature": (
        [turn("user", TEXT), turn("assistant", {"type": "thinking", "thinking": "Hm."}, TEXT)],
        "signature",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_refused_as_anthropic_refuses_them(name: str) -> None:
    messages, refusal = MESSAGES[name]
    tools = [{"name": "add", "input_schema": {"type": "object"}}]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "tools": tools}
    found = Vendor().refusal("/v1/messages?beta=true", body)
    assert (found is None) if refusal is None else (found is not None and refusal in found)


def item(id_: str = "c1", name: str = "add") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": "{}"}


def output(id_: str = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id_, "output": "4"}


RESPONSES: dict[str, tuple[list[Any], str | None]] = {
    "a call and its output": ([USER, item(), output()], None),
    "an empty id": ([USER, item(""), output("")], "call_id"),
    "a repeated id": ([USER, item(), item(), output()], "Duplicate"),
    "an odd name": ([USER, item(name="add two"), output()], ".name"),
    "no output": ([USER, item(), USER], "No tool output found"),
    "an output without a call": ([USER, output()], "No tool call found"),
    "two outputs": ([USER, item(), output(), output()], "Duplicate function call output"),
    "a part of chat completions": ([{"role": "user", "content": [TEXT]}], "content"),
    "reasoning before the user": (
        [USER, {"type": "reasoning", "id": "r", "summary": []}, USER],
        "required following item",
    ),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_responses_are_refused_as_openai_refuses_them(name: str) -> None:
    items, refusal = RESPONSES[name]
    found = Vendor().refusal("/v1/responses", {"model": "m", "input": items})
    assert (found is None) if refusal is None else (found is not None and refusal in found)


def part(name: str = "add", **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {}}, **more}


ASKED = {"role": "user", "parts": [{"text": "Add."}]}
RETURNED = {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {}}}]}
GEMINI: dict[str, tuple[list[Any], str | None]] = {
    "a call and its response": (
        [ASKED, {"role": "model", "parts": [part(thoughtSignature="s")]}, RETURNED],
        None,
    ),
    "no signature": ([ASKED, {"role": "model", "parts": [part()]}, RETURNED], "thought_signature"),
    "no response": ([ASKED, {"role": "model", "parts": [part()]}, ASKED], "function response parts"),
    "a response without a call": ([ASKED, RETURNED], "function response parts"),
}


@pytest.mark.parametrize("name", GEMINI)
def test_contents_are_refused_as_gemini_refuses_them(name: str) -> None:
    contents, refusal = GEMINI[name]
    found = Vendor().refusal("/v1beta/models/gemini-3-pro:generateContent", {"contents": contents})
    assert (found is None) if refusal is None else (found is not None and refusal in found)


async def test_a_signature_that_the_server_gave_must_come_back() -> None:
    """The server remembers what it gave with a call."""
    given = {"message": said(call(**signed("right"))), "finish_reason": "tool_calls"}
    vendor = Vendor("gemini")
    vendor.note(json_reply({"choices": [given]}).chunks)
    path, body = "/v1beta/openai/chat/completions", {"model": "m", "tools": [{"type": "x"}]}
    right = [USER, said(call(**signed("right"))), result()]
    assert vendor.refusal(path, {**body, "messages": right}) is None
    wrong = [USER, said(call(**signed("wrong"))), result()]
    assert "is lost" in str(vendor.refusal(path, {**body, "messages": wrong}))


def test_thinking_that_the_server_gave_must_come_back_before_its_call() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
    vendor = Vendor()
    vendor.note(json_reply({"type": "message", "content": [thought, use("t1")]}).chunks)
    body = {"model": "m", "max_tokens": 9, "tools": [{"name": "add", "input_schema": {"type": "object"}}]}
    right = [turn("user", TEXT), turn("assistant", thought, use("t1")), turn("user", answer("t1"))]
    assert vendor.refusal("/v1/messages", {**body, "messages": right}) is None
    wrong = [turn("user", TEXT), turn("assistant", use("t1")), turn("user", answer("t1"))]
    assert "Expected `thinking`" in str(vendor.refusal("/v1/messages", {**body, "messages": wrong}))


def test_reasoning_that_the_server_gave_must_come_back_before_its_call() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e"}
    vendor = Vendor()
    vendor.note(json_reply({"status": "completed", "output": [thought, item("f1")]}).chunks)
    right = {"model": "m", "input": [USER, thought, item("f1"), output("f1")]}
    assert vendor.refusal("/v1/responses", right) is None
    wrong = {"model": "m", "input": [USER, item("f1"), output("f1")]}
    assert "Expected `thinking`" in str(vendor.refusal("/v1/responses", wrong))


async def test_a_refused_request_gets_status_400_and_fails_its_test() -> None:
    server = Loopback([])
    await server.__aenter__()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="too short"):
            await client.chat.completions.create(model="m", messages=[])
    with pytest.raises(AssertionError, match="the vendor refuses this request"):
        await server.__aexit__(None)

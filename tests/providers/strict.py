"""What the servers of vendors refuse in a request, so that a loopback server can refuse it as they do.

`Loopback` asks `Vendor.refusal` before each reply. The path of a request decides which rules apply: chat completions,
Responses, Anthropic's messages, and Gemini's own API. A vendor of a compatible endpoint adds its rules:

- `openai` refuses members of messages that it does not know;
- `gemini` needs the thought signature of the first call of each step since the last user message, and accepts the
  documented placeholder for a call that it did not make;
- `deepseek` needs `reasoning_content` in every assistant message with calls, empty or not;
- `mistral` needs ids of nine letters and digits.

A vendor also remembers the signatures that it gave, and refuses a history in which its own call comes without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

VendorName: TypeAlias = Literal["", "openai", "gemini", "deepseek", "mistral"]
PLACEHOLDERS = frozenset(("skip_thought_signature_validator", "context_engineering_is_the_way_to_go"))
"""Signatures that Gemini documents for calls that it did not make."""
CALLS = frozenset(("tool_use", "function_call"))
"""Types of calls in the protocols of Anthropic and Responses."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
_AUTHOR = re.compile(r"[^\s<|\\/>]{1,64}")
_OPENAI_MEMBERS: Mapping[str, frozenset[str]] = {
    "system": frozenset(("role", "content", "name")),
    "developer": frozenset(("role", "content", "name")),
    "user": frozenset(("role", "content", "name")),
    "assistant": frozenset(
        ("role", "content", "name", "refusal", "audio", "tool_calls", "function_call", "prefix")
    ),
    "tool": frozenset(("role", "content", "tool_call_id", "name")),
}
_CALL_MEMBERS = frozenset(("id", "type", "function"))


class Refused(Exception):
    """A request that the vendor answers with HTTP 400."""


def _need(holds: object, message: str) -> None:
    if not holds:
        raise Refused(message)


class Vendor:
    """The rules of one server, and the signatures that it gave."""

    def __init__(self, name: VendorName = "") -> None:
        self.name = name
        self._given: dict[str, set[str]] = {}
        """Id of a call -> the signatures that were given with it."""
        self._thinking: dict[str, set[Any]] = {}
        """Id of a call -> the signatures of the thinking before it."""
        self._model = ""
        """The model of the last request."""
        self._made_by: dict[Any, str] = {}
        """Signature of thinking -> the model that gave it; no other model accepts it."""

    def refusal(self, path: str, body: Any) -> str | None:
        """Return why the vendor refuses a request, or None."""
        path = path.partition("?")[0]
        check = next((rules for end, rules in self._rules() if end in path), None)
        history = body.get("messages") or body.get("input")
        if not any("function" in one or one.get("type") in CALLS for one in _objects(history)):
            self._given, self._thinking = {}, {}  # another conversation, whose ids may be the same
        self._model = str(body.get("model"))
        try:
            if check is not None:
                check(body)
                self._check_thinking(history)
        except Refused as refused:
            return str(refused)
        return None

    def note(self, chunks: Iterable[bytes]) -> None:
        """Remember the signatures of an answer; a damaged answer has none."""
        whole = b"".join(chunks).decode(errors="replace")
        documents = [line.removeprefix("data:") for line in whole.splitlines() if line.startswith("data:")]
        ids: set[str] = set()
        thinking: set[Any] = set()
        for document in documents or [whole]:
            try:
                raw = json.loads(document)
            except (ValueError, RecursionError):
                continue
            for found in _objects(raw):
                id_, kind = found.get("call_id") or found.get("id"), found.get("type")
                if isinstance(id_, str) and id_ and ("function" in found or kind in CALLS):
                    ids.add(id_)
                    if signature := _google(found).get("thought_signature"):
                        self._given.setdefault(id_, set()).add(signature)
                if kind in ("thinking", "signature_delta", "reasoning"):
                    thinking |= {found.get("signature"), found.get("encrypted_content")} - {None, ""}
        self._thinking.update(dict.fromkeys(ids, thinking))
        if self._model:
            self._made_by.update(dict.fromkeys(thinking, self._model))

    def _rules(self) -> Iterator[tuple[str, Callable[[Any], None]]]:
        yield "/chat/completions", self._chat
        yield "/responses", _responses
        yield "/messages", _messages
        yield ":generateContent", _gemini
        yield ":streamGenerateContent", _gemini

    def _check_thinking(self, history: object) -> None:
        """Check that thinking came back before its calls, as Anthropic and the Responses API require it.

        Both bind it to the model that gave it.
        """
        seen: set[Any] = set()
        for found in _objects(history):
            kind = found.get("type")
            if kind in ("thinking", "reasoning"):
                given = {found.get("signature"), found.get("encrypted_content")} - {None}
                foreign = {one for one in given if self._made_by.get(one, self._model) != self._model}
                _need(not foreign, f"Invalid `signature` in `{kind}` block: another model gave it")
                seen |= given
            elif kind in CALLS:
                id_ = found.get("call_id") or found.get("id")
                own = {
                    one
                    for one in self._thinking.get(str(id_), set())
                    if self._made_by.get(one, self._model) == self._model
                }
                lost = own - seen
                _need(not lost, f"Expected `thinking` with its signature before {id_!r}, but found {kind!r}")

    # ---- chat completions ----

    def _chat(self, body: Any) -> None:
        _need(isinstance(body.get("model"), str) and body["model"], "you must provide a model parameter")
        messages = body.get("messages")
        _need(isinstance(messages, list) and messages, "[] is too short - 'messages'")
        open_calls: list[str] = []
        ids: set[str] = set()
        for at, message in enumerate(messages):
            role = message.get("role")
            _need(role in _OPENAI_MEMBERS, f"Invalid value: {role!r} - 'messages[{at}].role'")
            self._chat_members(at, message)
            if role == "tool":
                _need(
                    message.get("tool_call_id") in open_calls,
                    f"messages[{at}]: messages with role 'tool' must be a response to a preceding message with "
                    f"'tool_calls': {message.get('tool_call_id')!r} is open nowhere",
                )
                open_calls.remove(message["tool_call_id"])
                continue
            _need(
                not open_calls,
                f"messages[{at}]: an assistant message with 'tool_calls' must be followed by tool messages "
                f"responding to each 'tool_call_id'. Without a response: {open_calls}",
            )
            if role == "assistant":
                open_calls = [self._chat_call(at, call, ids) for call in message.get("tool_calls") or ()]
        _need(not open_calls, f"tool calls without a response at the end of 'messages': {open_calls}")
        _check_tools(body, [tool["function"] for tool in body.get("tools") or () if "function" in tool])
        if self.name == "gemini":
            self._check_signatures(messages)

    def _chat_members(self, at: int, message: Any) -> None:
        role, content = message["role"], message.get("content")
        if self.name == "openai":
            unknown = message.keys() - _OPENAI_MEMBERS[role]
            _need(not unknown, f"Unknown parameter: 'messages[{at}].{min(unknown, default='')}'.")
        if "name" in message:
            _need(_AUTHOR.fullmatch(str(message["name"])), f"Invalid 'messages[{at}].name': pattern")
        if role == "assistant":
            _need("tool_calls" not in message or message["tool_calls"], f"[] is too short - 'messages[{at}]'")
            given = (content, message.get("tool_calls"), message.get("refusal"), message.get("function_call"))
            _need(any(part is not None for part in given), f"messages[{at}]: content is required")
            if self.name == "deepseek" and message.get("tool_calls"):
                _need(
                    isinstance(message.get("reasoning_content"), str),
                    f"Missing `reasoning_content` field in the assistant message at message index {at}",
                )
        else:
            _need(isinstance(content, str | list), f"Invalid type for 'messages[{at}].content'")
        if isinstance(content, list):
            _need(
                content or (role == "assistant" and self.name != "openai"),
                f"[] is too short - 'messages[{at}].content'",
            )
            kinds = {part.get("type") for part in content}
            of_answers = {"text", "refusal", "thinking", *(["reference"] if self.name == "mistral" else [])}
            allowed = {"tool": {"text"}, "assistant": of_answers}.get(role)
            _need(allowed is None or kinds <= allowed, f"messages[{at}].content has parts {sorted(kinds)}")

    def _chat_call(self, at: int, call: Any, ids: set[str]) -> str:
        where = f"messages[{at}].tool_calls"
        id_, function = call.get("id"), call.get("function") or {}
        _need(isinstance(id_, str) and id_, f"Invalid '{where}.id': {id_!r}")
        _need(len(id_) <= 40 or self.name != "openai", f"Invalid '{where}.id': string too long")
        nine = self.name != "mistral" or re.fullmatch(r"[a-zA-Z0-9]{9}", id_)
        _need(nine, f"Tool call id was {id_} but must be a-z, A-Z, 0-9, with a length of 9.")
        _need(id_ not in ids, f"Duplicate value for '{where}.id': {id_!r}")
        ids.add(id_)
        _need(call.get("type") == "function", f"Invalid value: '{where}.type'")
        pattern = _GEMINI_NAME if self.name == "gemini" else _NAME
        name = function.get("name")
        _need(isinstance(name, str) and pattern.fullmatch(name), f"Invalid '{where}.function.name': {name!r}")
        _need(isinstance(function.get("arguments"), str), f"Invalid type for '{where}.function.arguments'")
        if self.name == "openai":
            unknown = call.keys() - _CALL_MEMBERS
            _need(not unknown, f"Unknown parameter: '{where}.{min(unknown, default='')}'.")
        return str(id_)

    def _check_signatures(self, messages: list[Any]) -> None:
        last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
        for at, message in enumerate(messages):
            for position, call in enumerate(message.get("tool_calls") or ()):
                signature = _google(call).get("thought_signature")
                known = self._given.get(call["id"])
                if known and at > last:
                    _need(
                        signature in known, f"messages[{at}]: the thought_signature of {call['id']!r} is lost"
                    )
                if position == 0 and at > last:
                    _need(
                        signature,
                        f"Function call is missing a thought_signature in functionCall parts: messages[{at}]",
                    )
                if signature is not None and signature not in PLACEHOLDERS and known is not None:
                    _need(signature in known, f"messages[{at}]: Corrupted thought signature.")


def _google(call: Any) -> Mapping[str, Any]:
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, Mapping) else None
    return google if isinstance(google, Mapping) else {}


def _objects(raw: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a JSON value, outer ones first."""
    if isinstance(raw, list):
        for inner in raw:
            yield from _objects(inner)
    elif isinstance(raw, Mapping):
        yield raw
        for inner in raw.values():
            yield from _objects(inner)


def _check_tools(body: Any, functions: list[Any]) -> None:
    """Check tools and their choice; `functions` are those of the client, not of the provider."""
    names = [function.get("name") for function in functions]
    for name in names:
        _need(isinstance(name, str) and _NAME.fullmatch(name), f"Invalid 'tools.name': {name!r}")
    _need(len({*names}) == len(names), "tools: tool names must be unique")
    choice = body.get("tool_choice")
    _need(choice in (None, "none") or body.get("tools"), "'tool_choice' is only allowed with 'tools'")
    if isinstance(choice, Mapping) and choice.get("type") in ("function", "tool"):
        chosen = choice.get("name") or choice.get("function", {}).get("name")
        _need(chosen in names, f"Tool choice {chosen!r} not found in 'tools' parameter")


# ---- Responses ----


def _responses(body: Any) -> None:
    items = body.get("input")
    _need(isinstance(items, str) or (isinstance(items, list) and items), "input is required")
    calls: dict[str, bool] = {}
    for at, item in enumerate([] if isinstance(items, str) else items):
        kind, where = item.get("type", "message"), f"input[{at}]"
        if kind == "function_call":
            id_, name = item.get("call_id"), item.get("name")
            _need(isinstance(id_, str) and 0 < len(id_) <= 64, f"Invalid '{where}.call_id': {id_!r}")
            _need(id_ not in calls, f"Duplicate '{where}.call_id': {id_!r}")
            _need(isinstance(name, str) and _NAME.fullmatch(name), f"Invalid '{where}.name': {name!r}")
            _need(isinstance(item.get("arguments"), str), f"Invalid type for '{where}.arguments'")
            calls[id_] = False
        elif kind == "function_call_output":
            id_ = item.get("call_id")
            _need(id_ in calls, f"No tool call found for function call output with call_id {id_!r}.")
            _need(not calls[id_], f"Duplicate function call output with call_id {id_!r}.")
            _need(isinstance(item.get("output"), str | list), f"Invalid type for '{where}.output'")
            calls[id_] = True
        elif kind == "message":
            _responses_message(where, item)
        elif kind == "reasoning":
            following = items[at + 1 : at + 2]
            _need(
                following and following[0].get("role") != "user",
                f"{where} of type 'reasoning' was provided without its required following item",
            )
    missing = [id_ for id_, answered in calls.items() if not answered]
    _need(not missing, f"No tool output found for function call {missing}.")
    _check_tools(body, [tool for tool in body.get("tools") or () if tool.get("type") == "function"])


def _responses_message(where: str, item: Any) -> None:
    role, content = item.get("role"), item.get("content")
    _need(role in ("user", "assistant", "system", "developer"), f"Invalid value: '{where}.role'")
    _need(isinstance(content, str | list), f"Invalid type for '{where}.content'")
    if isinstance(content, list):
        assistant = {"output_text", "refusal"}
        allowed = (
            assistant if role == "assistant" else {"input_text", "input_image", "input_file", "input_audio"}
        )
        kinds = {part.get("type") for part in content}
        _need(content, f"[] is too short - '{where}.content'")
        _need(kinds <= allowed, f"Invalid value: '{where}.content' has {sorted(kinds)}")


# ---- Anthropic's messages ----


def _messages(body: Any) -> None:
    _need(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
    messages = body.get("messages")
    _need(isinstance(messages, list) and messages, "messages: at least one message is required")
    _need(messages[0].get("role") == "user", 'messages: first message must use the "user" role')
    turns: list[tuple[str, list[Any]]] = []
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        _need(not message.keys() - {"role", "content"}, f"messages.{at}: Extra inputs are not permitted")
        _need(role in ("user", "assistant"), f"messages.{at}.role: Input should be 'user' or 'assistant'")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        _need(isinstance(blocks, list), f"messages.{at}.content: Input should be a valid list")
        _need(blocks or at == len(messages) - 1, f"messages.{at}: all messages must have non-empty content")
        if turns and turns[-1][0] == role:  # the API joins them
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, [*blocks]))
    ids: set[str] = set()
    open_calls: list[str] = []
    named: set[str] = set()
    for at, (role, blocks) in enumerate(turns):
        results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
        _need(
            sorted(map(str, results)) == sorted(open_calls),
            f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after, or the "
            f"reverse: {open_calls} and {results}",
        )
        kinds = [block.get("type") for block in blocks]
        _need(
            kinds[: len(results)] == ["tool_result"] * len(results),
            f"messages.{at}: `tool_result` blocks must come first",
        )
        open_calls = []
        for block in blocks:
            _messages_block(f"messages.{at}.content", role, block, ids)
            if block["type"] == "tool_use":
                open_calls.append(block["id"])
                named.add(block["name"])
    _need(not open_calls, f"`tool_use` ids without `tool_result` blocks at the end: {open_calls}")
    _need(body.get("tools") or not named, "Requests which include `tool_use` blocks must define tools")
    _check_tools(body, [tool for tool in body.get("tools") or () if "input_schema" in tool])


def _messages_block(where: str, role: str, block: Any, ids: set[str]) -> None:
    kind = block.get("type")
    if kind == "text":
        said = block.get("text")
        _need(isinstance(said, str) and said.strip(), f"{where}: text content blocks must contain text")
    elif kind == "tool_use":
        id_, name = block.get("id"), block.get("name")
        _need(role == "assistant", f"{where}: `tool_use` blocks can only be in `assistant` messages")
        _need(isinstance(id_, str) and _ANTHROPIC_ID.fullmatch(id_), f"{where}.tool_use.id: {id_!r}, pattern")
        _need(id_ not in ids, f"{where}: `tool_use` ids must be unique: {id_!r}")
        ids.add(id_)
        _need(isinstance(name, str) and _NAME.fullmatch(name), f"{where}.tool_use.name: {name!r}, pattern")
        _need(isinstance(block.get("input"), Mapping), f"{where}.tool_use.input: should be a dictionary")
    elif kind == "tool_result":
        _need(role == "user", f"{where}: `tool_result` blocks can only be in `user` messages")
    elif kind == "thinking":
        _need(block.get("signature"), f"{where}.thinking.signature: Field required")
    else:
        _need(isinstance(kind, str) and kind != "image_url", f"{where}: Input tag {kind!r} is unknown")


# ---- Gemini ----


def _gemini(body: Any) -> None:
    contents = body.get("contents")
    _need(isinstance(contents, list) and contents, "contents is not specified")
    _need(contents[0].get("role") == "user", "contents: the first turn must be one of the user")
    users = [at for at, content in enumerate(contents) if _is_said(content)]
    last = max(users, default=-1)
    calls: list[str] = []
    for at, content in enumerate(contents):
        parts = content.get("parts")
        _need(isinstance(parts, list) and parts, f"contents[{at}].parts must not be empty")
        answers = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        _need(
            sorted(answers) == sorted(calls),
            f"contents[{at}]: the number of function response parts must equal that of the function call parts of "
            f"the function call turn: {calls} and {answers}",
        )
        called = [part for part in parts if "functionCall" in part]
        calls = [part["functionCall"]["name"] for part in called]
        for name in calls:
            _need(_GEMINI_NAME.fullmatch(name), f"contents[{at}]: Invalid function name {name!r}")
        if called and at > last:
            _need(
                called[0].get("thoughtSignature"),
                f"contents[{at}]: Function call is missing a thought_signature in functionCall parts.",
            )
    _need(not calls, f"function calls without a response: {calls}")


def _is_said(content: Any) -> bool:
    parts = content.get("parts") or ()
    return content.get("role") == "user" and any("text" in part or "inlineData" in part for part in parts)

"""The protocol of xAI, gRPC, with the interface of `Loopback`: a reply has the messages of its answer as chunks.

The libraries are those of the fixture `vendor_libraries`, so they are imported late.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any, Self

from tests.providers.loopback import Asked, Reply
from tests.providers.wire import Call, Said, Wire

_PROTO = "xai_sdk.proto.v6"
_CHAT = "/xai_api.Chat/"
_WHOLE, _STREAMED = f"{_CHAT}GetCompletion", f"{_CHAT}GetCompletionChunk"


THROTTLED = Reply(429)
"""The status RESOURCE_EXHAUSTED."""


class GrokServer:
    """A server of xAI on this machine; `async with` starts and stops it."""

    def __init__(self, reply_to: Callable[[Asked], Reply]) -> None:
        self._reply_to = reply_to
        self.asked: list[Asked] = []

    async def __aenter__(self) -> Self:
        grpc = import_module("grpc")
        handlers = {
            _WHOLE: grpc.unary_unary_rpc_method_handler(self._whole),
            _STREAMED: grpc.unary_stream_rpc_method_handler(self._streamed),
        }

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
            def service(self, call: Any) -> Any:
                return handlers.get(call.method)

        self._server = import_module("grpc.aio").server(handlers=[Handler()])
        port = self._server.add_secure_port("localhost:0", grpc.local_server_credentials())
        self.url = f"localhost:{port}"
        await self._server.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._server.stop(None)

    async def _whole(self, request: bytes, context: Any) -> bytes:
        reply = self._reply(_WHOLE, request)
        if reply.status == THROTTLED.status:
            await context.abort(import_module("grpc").StatusCode.RESOURCE_EXHAUSTED, "slow down")
        return reply.chunks[0]

    async def _streamed(self, request: bytes, _: object) -> AsyncIterator[bytes]:
        for chunk in self._reply(_STREAMED, request).chunks:
            yield chunk

    def _reply(self, path: str, request: bytes) -> Reply:
        read = import_module(f"{_PROTO}.chat_pb2").GetCompletionsRequest.FromString(request)
        body = import_module("google.protobuf.json_format").MessageToJson(read, ensure_ascii=False)
        self.asked.append(Asked("POST", path, {}, body.encode()))
        return self._reply_to(self.asked[-1])


def _answer(said: Said, *, message: str, part: str) -> Any:
    """Return an answer, or the only chunk of a streamed one: `part` is its member of an output."""
    chat, usage = import_module(f"{_PROTO}.chat_pb2"), import_module(f"{_PROTO}.usage_pb2")
    role = chat.MessageRole.ROLE_ASSISTANT
    content: dict[str, Any] = {"content": said}
    finish = "REASON_STOP"
    if isinstance(said, Call):
        function = chat.FunctionCall(name=said.tool, arguments=json.dumps(said.arguments))
        call = chat.ToolCall(
            id=said.id, type=chat.ToolCallType.TOOL_CALL_TYPE_CLIENT_SIDE_TOOL, function=function
        )
        content, finish = {"tool_calls": [call]}, "REASON_TOOL_CALLS"
    answer = getattr(chat, message)(id="x1", model="m-dated")
    output = answer.outputs.add(index=0, finish_reason=finish)
    getattr(output, part).MergeFrom(type(getattr(output, part))(role=role, **content))
    tokens = {"prompt_tokens": 20, "cached_prompt_text_tokens": 5, "completion_tokens": 7, "total_tokens": 27}
    answer.usage.MergeFrom(usage.SamplingUsage(prompt_text_tokens=20, **tokens))
    return answer


def _grok(said: Said) -> Reply:
    answer = _answer(said, message="GetChatCompletionResponse", part="message")
    return Reply(chunks=(answer.SerializeToString(),))


def _grok_stream(said: Said) -> Reply:
    last = _answer(said, message="GetChatCompletionChunk", part="delta")
    chunks = [last]
    if not isinstance(said, Call):
        half = len(said) // 2
        first = type(last)(id=last.id, model=last.model)
        first.outputs.add(index=0).delta.MergeFrom(last.outputs[0].delta)
        first.outputs[0].delta.content = said[:half]
        last.outputs[0].delta.content = said[half:]
        chunks = [first, last]
    return Reply(chunks=tuple(chunk.SerializeToString() for chunk in chunks))


GROK = Wire(_grok, _grok_stream, lambda asked: asked.path == _STREAMED)

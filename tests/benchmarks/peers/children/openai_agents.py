"""openai-agents: an Agent with a function tool under its Runner; its model says the script, its tracing is off."""

from __future__ import annotations

from typing import Any

from agents import (  # type: ignore[import-not-found, unused-ignore]
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (  # type: ignore[import-not-found, unused-ignore]
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, TOOL, Call, Script

_QUIET = RunConfig(tracing_disabled=True)


class ScriptedModel(Model):  # type: ignore[misc, unused-ignore]
    """Says what the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> Any:  # noqa: A002
        """Answer. A turn is an item for each call and one for each result."""
        del system_instructions, rest, options
        past = 0 if isinstance(input, str) else len(input) - 1
        calls = await self._script.calls(past // (2 * self._script.tools or 1))
        usage = Usage(
            requests=1,
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            total_tokens=INPUT_TOKENS + OUTPUT_TOKENS,
        )
        output = [_item(call) for call in calls] or [_answer()]
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        """Never asked for."""
        raise NotImplementedError


def _item(call: Call) -> Any:
    return ResponseFunctionToolCall(
        arguments=call.text, call_id=call.id, name=TOOL, type="function_call", status="completed"
    )


def _answer() -> Any:
    text = ResponseOutputText(annotations=[], text=ANSWER, type="output_text")
    return ResponseOutputMessage(
        id="answer", content=[text], role="assistant", status="completed", type="message"
    )


class Agents:
    """One agent."""

    def __init__(self, script: Script) -> None:
        @function_tool  # type: ignore[untyped-decorator, unused-ignore]
        async def look_up(key: str, depth: int = 1) -> str:
            """Look something up."""
            return script.look_up(key, depth)

        self._agent = Agent(name="agent", model=ScriptedModel(script), tools=[look_up])

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        del name
        result = await Runner.run(self._agent, PROMPT, max_turns=1_000_000, run_config=_QUIET)
        return str(result.final_output)


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    why = "its sessions store conversations and are not measured; a RunState is stored by its user"
    child.serve(child.Side(("openai-agents", "openai"), Agents, storeless=why))

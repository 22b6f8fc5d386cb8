"""What each recorded exchange with OpenAI's APIs comes to, by whichever server."""

from __future__ import annotations

from orchestrator.llm.message import Response, ToolCall, Usage
from tests.providers.exchange import Expected, Failed, Place

ROWS: dict[Place, Expected] = {
    ("01-chat-plain", 0): Response("Atlantic Ocean.", (), "stop", Usage(22, 3), "gpt-4o-mini-2024-07-18"),
    ("02-chat-plain-stream-usage", 0): Response(
        "Southern Ocean.", (), "stop", Usage(22, 3), "gpt-4o-mini-2024-07-18"
    ),
    ("04-responses-plain-and-chain-stream", 0): Response(
        "quartz", (), "completed", Usage(13, 6), "gpt-5.6-sol"
    ),
    ("04-responses-plain-and-chain-stream", 1): Response(
        "quartz", (), "completed", Usage(41, 6), "gpt-5.6-sol"
    ),
    ("05-chat-one-tool-chain", 0): Response(
        None,
        (ToolCall("call_TTY8UFNo7rNCaOBUNtlRSvMG", "lookup_population", '{"country":"Crumpet"}'),),
        "tool_calls",
        Usage(92, 17),
        "gpt-4o-mini-2024-07-18",
    ),
    ("05-chat-one-tool-chain", 1): Response(
        None,
        (ToolCall("call_aq9UyiSFkzX6W8Ydc33DoI9Y", "can_have_dragons", '{"population":123124}'),),
        "tool_calls",
        Usage(118, 18),
        "gpt-4o-mini-2024-07-18",
    ),
    ("05-chat-one-tool-chain", 2): Response("YES", (), "stop", Usage(146, 3), "gpt-4o-mini-2024-07-18"),
    ("06-chat-one-tool-stream", 0): Response(
        None,
        (ToolCall("call_1EYWDzueHEp8OsB8jJSEp7WB", "multiply", '{"a":1231,"b":2331}'),),
        "tool_calls",
        Usage(54, 20),
        "gpt-4o-mini-2024-07-18",
    ),
    ("06-chat-one-tool-stream", 1): Response(
        "The result of \\( 1231 \\times 2331 \\) is \\( 2,869,461 \\).",
        (),
        "stop",
        Usage(87, 26),
        "gpt-4o-mini-2024-07-18",
    ),
    ("08-chat-stream-tool-no-finish", 0): Response(
        "", (ToolCall("0", "llm_version", "{}"),), None, Usage(57, 17, cost=0.00007159), "moonshotai/kimi-k2"
    ),
    ("08-chat-stream-tool-no-finish", 1): Response(
        "The current version of *llm* is **0.fixed-version**.",
        (),
        "stop",
        Usage(107, 15, cost=0.0001017),
        "moonshotai/kimi-k2",
    ),
    ("09-chat-stream-tool-empty-arguments", 0): Response(
        "",
        (ToolCall("0", "llm_version", ""),),
        "tool_calls",
        Usage(57, 17, cost=0.00007159),
        "muse-spark-1.1",
    ),
    ("09-chat-stream-tool-empty-arguments", 1): Response(
        "The current version of *llm* is **0.fixed-version**.",
        (),
        "stop",
        Usage(107, 15, cost=0.0001017),
        "muse-spark-1.1",
    ),
    ("10-chat-parallel", 0): Response(
        None,
        (
            ToolCall("call_JpNb8OiAkbIbHzDggfpdDHpi", "get_current_weather", '{"location": "Seattle, WA"}'),
            ToolCall(
                "call_vaFQc3zK6hHTRZKXRI5Eo2cJ", "get_current_weather", '{"location": "San Francisco, CA"}'
            ),
        ),
        "tool_calls",
        Usage(75, 51),
        "gpt-4o-mini-2024-07-18",
    ),
    ("10-chat-parallel", 1): Response(
        "Today, the weather in Seattle is 50 degrees and raining, while in San Francisco, it's 70 degrees and sunny.",
        (),
        "stop",
        Usage(99, 25),
        "gpt-4o-mini-2024-07-18",
    ),
    ("11-chat-parallel-stream", 0): Response(
        None,
        (
            ToolCall("call_vbjItaL3xe3uYPY1PIVhmBcs", "get_weather", '{"location": "New York City"}'),
            ToolCall("call_q2Px0dkOQv47VpcCF50xZsap", "get_weather", '{"location": "London"}'),
        ),
        "tool_calls",
        None,
        "gpt-4o-mini-2024-07-18",
    ),
    ("14-responses-parallel", 0): Response(
        None,
        (
            ToolCall("call_tYDv1bhtioyX33juEGDY4D6H", "get_weather", '{"location":"London"}'),
            ToolCall("call_lC079UhGnLJngBlPQO0FS6sv", "get_weather", '{"location":"London"}'),
        ),
        "completed",
        Usage(58, 44),
        "gpt-4.1-nano-2025-04-14",
    ),
    ("15-chat-five-parallel", 0): Response(
        None,
        (
            ToolCall("call_ADbiw31dwp0SSRKmJP0XHJ4A", "iterating_tool", '{"input_text": "Iteration 1"}'),
            ToolCall("call_iFTVVFQ2ZcdyAdKE1bsZiez6", "iterating_tool", '{"input_text": "Iteration 2"}'),
            ToolCall("call_vhVUZMtgVtZmmQEMlM2zYccJ", "iterating_tool", '{"input_text": "Iteration 3"}'),
            ToolCall("call_O099dJy9r21sfXV8TNfqIpug", "iterating_tool", '{"input_text": "Iteration 4"}'),
            ToolCall("call_izB3AuRTZRff7n6i5BBZnqox", "iterating_tool", '{"input_text": "Iteration 5"}'),
        ),
        "tool_calls",
        Usage(145, 106),
        "gpt-4.1-mini-2025-04-14",
    ),
    ("16-chat-arguments-cut-off", 0): Response(
        "",
        (
            ToolCall(
                "call_REDACTED_1", "file_report", '{"summary": "The cache warmer raced the artifact uploader'
            ),
        ),
        "length",
        Usage(137, 16, 112),
        "mistral-small-latest",
    ),
    ("17-chat-parallel-one-cut-stream", 0): Response(
        "",
        (
            ToolCall("call_REDACTED_1", "page_oncall", '{"team": "platform"}'),
            ToolCall("call_REDACTED_2", "file_report", '{"summary": '),
        ),
        "length",
        Usage(434, 56, 384),
        "deepseek-v4-flash",
    ),
    ("18-chat-arguments-null", 0): Response(
        None,
        (
            ToolCall("call_REDACTED_1", "lookup_harbor_label", "null"),
            ToolCall("call_REDACTED_2", "lookup_orchard_label", "null"),
        ),
        "tool_calls",
        Usage(359, 35),
        "llama-3.3-70b-versatile",
    ),
    ("19-groq-tool-use-failed", 0): Failed("malformed", 400, retry_after=None, retryable=True),
    ("19-groq-tool-use-failed", 1): Response(
        None,
        (ToolCall("fc_311ba17b-89f9-48d3-8fd9-7e74a1264855", "get_something_by_name", '{"name":"test"}'),),
        "tool_calls",
        Usage(301, 52, 0, 22),
        "openai/gpt-oss-120b",
        reasoning='We need to call with correct param: name field. Use some name, e.g., "test".',
    ),
    ("19-groq-tool-use-failed", 2): Response(
        "The first call failed due to missing and extra parameters, as expected. The second call "
        'succeeded and returned: "Something with name: test".',
        (),
        "stop",
        Usage(336, 96, 256, 59),
        "openai/gpt-oss-120b",
        reasoning='We need to respond to user request. They asked: "Please call the '
        "... tool with non-existent parameters to test error handling; on the "
        'second try you can use valid args". We already did that. '
        "Now we should respond concisely, maybe acknowledging the result. Use regular quotes.",
    ),
    ("20-chat-refusal", 0): Response(
        None,
        (),
        "stop",
        Usage(65, 13),
        "gpt-4o-2024-08-06",
        refusal="I'm very sorry, but I can't assist with that request.",
    ),
    ("21-chat-refusal-stream", 0): Response(
        None,
        (),
        "stop",
        Usage(49, 12),
        "gpt-4o-2024-08-06",
        refusal="I'm very sorry, but I can't assist with that.",
    ),
    ("22-chat-length-then-retry", 0): Response(
        "Maple trees are known for their vibrant fall foliage, displaying brilliant shades of red",
        (),
        "length",
        Usage(30, 16),
        "gpt-4o-mini-2024-07-18",
    ),
    ("22-chat-length-then-retry", 1): Response(
        "Maple trees are known for their vibrant fall foliage, displaying brilliant shades of red, orange, and yellow. "
        "They are also valued for their sap, which is harvested to produce maple syrup.",
        (),
        "stop",
        Usage(30, 38),
        "gpt-4o-mini-2024-07-18",
    ),
    ("24-responses-incomplete-mid-tool-stream", 0): Response(
        None,
        (ToolCall("call_REDACTED_1", "add", '{"x":48151'),),
        "max_output_tokens",
        Usage(83, 16),
        "gpt-5.6-sol",
    ),
    ("25-rate-limit-429-retry-after", 0): Failed("rate_limited", 429, retry_after=1.0, retryable=True),
    ("26-rate-limit-429-upstream", 0): Failed("rate_limited", 429, retry_after=None, retryable=True),
    ("26-rate-limit-429-upstream", 1): Failed("rate_limited", 429, retry_after=None, retryable=True),
    ("26-rate-limit-429-upstream", 2): Failed("rate_limited", 429, retry_after=None, retryable=True),
    ("27-server-error-500", 0): Failed("server_error", 500, retry_after=None, retryable=True),
    ("29-context-length-openai", 0): Failed("context_length", 400, retry_after=None, retryable=False),
    ("31-invalid-json-in-json-mode", 0): Response(
        '```json\n{\n  "city": "Paris"\n}\n```',
        (),
        "stop",
        Usage(23, 18, 22),
        "/REDACTED_PATH/Qwen3-1.7B-Q4_K_M.gguf",
    ),
    ("33-model-not-found-404", 0): Failed("client_error", 404, retry_after=None, retryable=False),
    ("34-error-body-under-200", 0): Failed("content_filter", 400, retry_after=None, retryable=False),
    ("35-missing-tool-result-400", 0): Failed("client_error", 400, retry_after=None, retryable=False),
    # An empty finish reason is none.
    ("37-chat-finish-reason-empty-string", 0): Response(
        "",
        (ToolCall("toolu_bdrk_015BgHUFs4HS1TVWWwNRNxip", "get_weather", '{"city":"Mexico City"}'),),
        None,
        Usage(568, 55),
        "claude-sonnet-4-6",
    ),
    ("37-chat-finish-reason-empty-string", 1): Response(
        "The weather in Mexico City is currently sunny with a pleasant temperature of 25°C.",
        (),
        None,
        Usage(642, 21),
        "claude-sonnet-4-6",
    ),
}

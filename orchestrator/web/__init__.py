"""Parts that every HTTP surface of the package uses: console, web service, MCP server and pages for operators.

Any of them may stand at the edge of a network, so the same rules hold for all: a request has a bounded body that
arrives within a bounded time, an event stream needs a free place, and a token is compared in constant time and never
locks out the holder of the right one. `server.py` needs uvicorn; the other modules need no library.
"""

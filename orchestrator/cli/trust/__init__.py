"""Untrusted projects: names in a folder or a journal are used only if the user consents to them.

A configuration file names the model, its address, and the code and programs that start. A journal names the same for
its runs. Both may come from another person: a clone has the files of its author under the user's own name.

| item | is trusted without a question if |
|---|---|
| the command line and the environment | always: the user typed them |
| `orchestrator.toml`, `ralph.toml`, the file of a pipeline | `orchestrator trust` recorded these bytes of this file |
| a run in a journal | its run signature verifies: this user started it on this host |
| a tool of an MCP server | it is as it was when this user named the server for the first time |

`--trust` allows all of them for one command, ORCHESTRATOR_TRUST for the processes of a container (see `consent`).
Consents, pins of tools and the key of the signatures are files in one folder outside of every project (see `state`).

A file is identified by its own path, with the links of its folder resolved and its own not, and by the working
directory: both decide which modules and programs its names mean. The bytes that are checked are those that are parsed.
A module or program that the file names is not part of the digest: like a Makefile's, it is edited without a question.
"""

"""The tool decorator, schemas and arguments of tools, tool sets and results."""

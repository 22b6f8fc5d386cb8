"""Tools: the decorator, schemas and arguments, tool sets and results."""

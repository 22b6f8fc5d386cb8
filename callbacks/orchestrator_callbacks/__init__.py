"""Hooks of the machines: code with side effects, one folder per machine and one module per kind of hook."""

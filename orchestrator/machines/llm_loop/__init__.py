"""Seed 003: call the LLM, look at the answer, run its tools, check budgets, retry or finish."""

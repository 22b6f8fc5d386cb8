"""The LLM loop: call the model, evaluate the answer, run its tools, check budgets, retry or finish."""

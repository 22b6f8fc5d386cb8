"""Messages, requests, answers and usage of models, retry, and structured output."""

"""Messages, requests, answers and usage of models; retries; structured output."""

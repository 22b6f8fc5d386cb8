"""Common parts of code mode and tools mode: context, limits, policies, endings."""

"""Common hooks and helpers of code mode and tools mode."""

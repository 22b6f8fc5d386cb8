"""The pipeline machine: plan, validate, implement, judge, and repeat with feedback until approval or a limit."""

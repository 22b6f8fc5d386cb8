"""The pipeline as a state machine with metrics that the host drives itself."""

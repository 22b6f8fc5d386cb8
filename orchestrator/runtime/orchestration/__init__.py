"""The pipeline as its specification (seed 000) names it: a state machine with metrics that the host moves itself."""

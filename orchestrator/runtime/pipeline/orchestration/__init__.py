"""The pipeline as its specification names it: a state machine with metrics that the host moves itself."""

"""The same team of agents with four libraries: `make bench-features ARGS=--team`."""

"""The graph, states, events, limits and context of each machine, one folder per machine.

Data and pure functions only.
"""

"""Backtest a policy on recorded runs: which would have ended differently, and at what gain and harm.

`trace` reads the decisions of a run as raw inputs, `comparison` evaluates them under a `policy` with the functions of
the loop itself, proves the recorded policy and finds the first difference, and `report` counts.
"""

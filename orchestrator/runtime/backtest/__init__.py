"""Backtest a policy on recorded runs: which would have ended differently, and at what gain and harm.

`trace_reader` reads the decisions of a run as raw inputs (`trace`), `evaluator` evaluates them under a `policy` with
the functions of the loop itself, `comparison` proves the recorded policy and finds the first difference, and
`report` counts. `sweep_range` reads the values of a sweep, and `plot` draws its reports.
"""

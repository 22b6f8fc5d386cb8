"""What runs inside the worker process. Imports the standard library and itself only: nothing of ours, no third party.

The order in which it locks itself up is in `main.py`; each other module is one lock, or what is behind them.
"""

"""The code that runs inside the worker process. It imports only the standard library and itself.

`main.py` defines the order in which the worker closes its locks; each other module is one lock, or code that runs
behind the locks.
"""

"""Code that takes too much, or breaks the way it is spoken to, as data: name -> (code, what the model is told)."""

from __future__ import annotations

from tests.repl.escapes import PRELUDE

FLOODS: dict[str, tuple[str, str]] = {
    "a list that grows": (
        """
x = []
while True: x.append(bytearray(10**6))
""",
        "emory",
    ),
    "one huge block": ("bytearray(10**12)", "emory"),
    "a huge number": ("1 << (8 * 10**9)", "emory"),
    "a string that doubles": (
        """
s = 'x'
while True: s += s
""",
        "emory",
    ),
    "a mapping": (PRELUDE + "module('mmap').mmap(-1, 10**10)", "OSError"),
    "a dictionary for ever": (
        """
d = {}
while True: d[len(d)] = [0] * 1000
""",
        "emory",
    ),
    "memory in C": (PRELUDE + "while True: libc.malloc(10**6) or 1 / 0", "ZeroDivisionError"),
    "an endless loop": ("while True: pass", "CPU time"),
    "an endless loop in C": ("sum(iter(int, 1))", "CPU time"),
    "a pattern that explodes": (
        """
import re
re.match('(a+)+$', 'a' * 100 + 'b')
""",
        "CPU time",
    ),
    "a loop that catches all": (
        """
while True:
    try:
        while True: pass
    except BaseException: pass
""",
        "CPU time",
    ),
    "a loop that ignores signals": (
        PRELUDE
        + """
s = module('signal')
for n in range(1, 65):
    try: s.signal(n, s.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
        "CPU time",
    ),
    "sleep": (
        """
import time
time.sleep(10**6)
""",
        "wall time",
    ),
    "waiting for its own channel": (PRELUDE + "os.read(channel()._reading, 10)", "wall time"),
    "a lock that nobody opens": (
        PRELUDE
        + """
module('_thread').allocate_lock().acquire() and module('_thread').allocate_lock()
l = module('_thread').allocate_lock()
l.acquire()
l.acquire()
""",
        "wall time",
    ),
    "leaving": (PRELUDE + "os._exit(0)", "exit"),
    "leaving with an error": (PRELUDE + "os._exit(5)", "exit status 5"),
    "a crash": (PRELUDE + "ctypes.string_at(0)", "signal SIGSEGV"),
    "abort": (PRELUDE + "os.abort()", "exit"),
    "a deep recursion in C": (
        """
import json
from typing import sys
sys.setrecursionlimit(10**7)
x = []
for i in range(10**6): x = [x]
repr(x)
""",
        "",
    ),
    "noise on the channel": (
        PRELUDE + "os.write(channel()._writing, b'\\x00\\x00\\x00\\x05hello')",
        "protocol",
    ),
    "a huge frame": (PRELUDE + "os.write(channel()._writing, b'\\xff\\xff\\xff\\xff')", "protocol"),
    "a frame of deep lists": (
        PRELUDE + "os.write(channel()._writing, (200000).to_bytes(4, 'big') + b'[' * 200000)",
        "protocol",
    ),
    "a frame that is no object": (
        PRELUDE + "os.write(channel()._writing, b'\\x00\\x00\\x00\\x01' + b'5')",
        "protocol",
    ),
    "a question with wrong prompts": (
        PRELUDE
        + """
import json
b = json.dumps({'t': 'query', 'prompts': [1]}).encode()
os.write(channel()._writing, len(b).to_bytes(4, 'big') + b)
""",
        "protocol",
    ),
    "too many questions by hand": (
        PRELUDE
        + """
import json
b = json.dumps({'t': 'query', 'prompts': ['x'] * 21}).encode()
os.write(channel()._writing, len(b).to_bytes(4, 'big') + b)
""",
        "protocol",
    ),
    "closing the channel": (
        PRELUDE
        + """
os.close(channel()._writing)
import time
time.sleep(100)
""",
        "closed its end",
    ),
    "closing all": (PRELUDE + "os.closerange(0, 100)", "exit"),
}

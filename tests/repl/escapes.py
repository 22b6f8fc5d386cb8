"""What code might try, as data: each attempt ends by printing what it got, or by an exception.

The attempts get at modules that the import list refuses, so that it is the kernel's locks that stop them. Names in
braces are filled in by the test. None of them can hurt the machine where it is not stopped: signals are number 0,
forks are counted, files are the test's own.
"""

from __future__ import annotations

PRELUDE = """
from typing import sys
os = sys.modules["os"]
module = sys.modules["importlib"].import_module
ctypes = sys.modules["ctypes"]
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    found = libc.syscall(ctypes.c_long(number), *arguments)
    if found == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
def channel():
    return next(one for one in module("gc").get_objects() if type(one).__name__ == "Channel")
def slurp(path):
    with sys.modules["io"].open(path, "rb") as file:
        return file.read(100)
def spit(path):
    with sys.modules["io"].open(path, "ab") as file:
        file.write(b"x")
    return path
def linked(path):
    return ctypes.c_char_p(path.encode())
"""

FILES = {
    "read a file of the host": "slurp({secret!r})",
    "read it by a descriptor": "os.read(os.open({secret!r}, os.O_RDONLY), 100)",
    "read it over the root of this process": "slurp('/proc/self/root' + {secret!r})",
    "read it over a folder descriptor": (
        "os.read(os.open({secret!r}.lstrip('/'), os.O_RDONLY, dir_fd=os.open('/', os.O_RDONLY)), 100)"
    ),
    "read it by a way up": "slurp('../' * 20 + {secret!r}.lstrip('/'))",
    "read it by the system call": "call(257, -100, linked({secret!r}), 0, 0)",
    "read it through a symbolic link": "os.symlink({secret!r}, 'link') or slurp('link')",
    "read it through a hard link": "os.link({secret!r}, 'link') or slurp('link')",
    "map it into memory": "module('mmap').mmap(os.open({secret!r}, os.O_RDONLY), 0, prot=1)[:10]",
    "load it as a library": "ctypes.CDLL({secret!r})",
    "see that it is there": "os.stat({secret!r}).st_size",
    "list its folder": "os.listdir(os.path.dirname({secret!r}))",
    "read the password file": "slurp('/etc/passwd')",
    "read the shadow file": "slurp('/etc/shadow')",
    "read the code of the program": "slurp({package!r} + '/errors.py')",
    "read the memory of the machine": "slurp('/dev/mem')",
    "read the kernel's log": "slurp('/dev/kmsg')",
    "write to a file of the host": "spit({secret!r})",
    "write a new file of the host": "spit({secret!r} + '.new')",
    "write into Python's library": "spit(os.path.dirname(os.__file__) + '/sitecustomize.py')",
    "change Python's library": "spit(os.__file__)",
    "write to the temporary folder": "spit(os.path.dirname(os.getcwd()) + '/escaped.txt')",
    "write to shared memory": "spit('/dev/shm/escaped.txt')",
    "empty a file of the host": "os.truncate({secret!r}, 0)",
    "empty it by opening it to read": "os.open({secret!r}, os.O_RDONLY | os.O_TRUNC)",
    "empty it by opening it for nothing": "os.open({secret!r}, os.O_ACCMODE | os.O_TRUNC)",
    "remove a file of the host": "os.remove({secret!r})",
    "move a file of the host": "os.rename({secret!r}, 'mine')",
    "move a file out": "spit('mine') and os.rename('mine', {secret!r} + '.new')",
    "change the mode of a file of the host": "os.chmod({secret!r}, 0o777)",
    "change the owner of a file of the host": "os.chown({secret!r}, 1, 1)",
    "change the times of a file of the host": "os.utime({secret!r}, (0, 0))",
    "make a device": "os.mknod('device', 0o20600, os.makedev(1, 1))",
    "make a named pipe": "os.mkfifo('pipe')",
    "mount something": "sys.modules['orchestrator.repl.inside.lock'].mount('proc', os.getcwd(), 'proc', 0)",
    "change the root": "os.chroot('.')",
    "go to another folder": "os.chdir(os.path.dirname({secret!r})) or os.listdir('.')",
}
NETWORK = {
    "open a TCP socket": "module('socket').socket().connect(('127.0.0.1', {port}))",
    "open a UDP socket": "module('socket').socket(type=2).sendto(b'x', ('127.0.0.1', {port}))",
    "open a UNIX socket": "module('socket').socket(1).connect({unix!r})",
    "open an abstract socket": "module('socket').socket(1).connect({abstract!r})",
    "open a raw socket": "module('socket').socket(2, 3, 1)",
    "open a netlink socket": "module('socket').socket(16, 3, 0)",
    "make a pair of sockets": "module('socket').socketpair()",
    "look a name up": "module('socket').gethostbyname('localhost.example')",
    "make an io_uring": "call(425, 8, ctypes.byref((ctypes.c_char * 200)()))",
}
PROCESSES = {
    "fork": "os.fork() or os._exit(0)",
    "fork by system call": "call(57) or os._exit(0)",
    "clone": "call(56, 17, 0, 0, 0, 0) or os._exit(0)",
    "clone, the new call": "call(435, ctypes.byref((ctypes.c_uint64 * 8)(0, 0, 0, 0, 17)), 64) or os._exit(0)",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {{}})",
    "run a program": "module('subprocess').run(['true'])",
    "become a program": "os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
    "become a program in memory": "os.execve(os.memfd_create('x'), ['x'], {{}})",
    "start a thread": "module('threading').Thread(target=int).start()",
}
PROGRAMS = {
    "see the program that started it": "os.kill({parent}, 0) or 'seen'",
    "see it as the parent": "os.kill(os.getppid() or {parent}, 0) or 'seen'",
    "see all processes": "os.kill(-1, 0) or 'seen'",
    "see the group of another process": "os.killpg({group}, 0) or 'seen'",
    "get a handle of the program": "os.pidfd_open({parent})",
    "let a pipe send it signals": "module('fcntl').fcntl(4, module('fcntl').F_SETOWN, {parent}) or 'owned'",
    "choose which signals": "module('fcntl').fcntl(4, 10, 10) or 'chosen'",
    "queue a signal": "call(129, {parent}, 0, ctypes.byref((ctypes.c_char * 128)()))",
    "read the environment of the program": "slurp('/proc/{parent}/environ')",
    "read the environment of its parent": "slurp(f'/proc/{{os.getppid() or 1}}/environ')",
    "read its own environment as it was": "slurp('/proc/self/environ')",
    "read the memory of the program": "slurp('/proc/{parent}/mem')",
    "read the command line of the program": "slurp('/proc/{parent}/cmdline')",
    "list processes": "[name for name in os.listdir('/proc') if name.isdigit()]",
    "trace the program": "call(101, 16, {parent}, 0, 0)",
    "copy the memory of the program": "call(310, {parent}, 0, 0, 0, 0, 0)",
    "change the limits of the program": "module('resource').prlimit({parent}, module('resource').RLIMIT_NOFILE)",
    "change the priority of the program": (
        "os.setpriority(os.PRIO_PROCESS, {parent}, os.getpriority(os.PRIO_PROCESS, {parent})) or 'done'"
    ),
}
RIGHTS = {
    "raise its own limit": "module('resource').setrlimit(module('resource').RLIMIT_AS, (-1, -1)) or 'raised'",
    "become root": "os.setuid(0) or 'root'",
    "become another user": "os.setresuid(1, 1, 1) or 'other'",
    "enter a new user namespace": "sys.modules['orchestrator.repl.inside.lock'].unshare(0x10000000) or 'in'",
    "enter a namespace of the host": "call(308, 0, 0)",
    "outlive the program": "sys.modules['orchestrator.repl.inside.lock'].prctl(1, 0) or 'free'",
    "replace the filter": "sys.modules['orchestrator.repl.inside.lock'].prctl(22, 2, 0) or 'replaced'",
    "leave its session": "os.setsid()",
    "keep memory outside its address space": "os.memfd_create('x')",
    "share memory with the host": "call(29, 0, 100, 0o1600)",
    "load a program into the kernel": "call(321, 0, 0, 0)",
    "watch the kernel": "call(298, 0, 0, -1, -1, 0)",
    "read the kernel's keys": "call(250, 0, -3, 0)",
    "handle its own page faults": "call(323, 0)",
    "load a kernel module": "call(175, 0, 0, linked(''))",
}
EMPTY = {
    "read the environment": "[name for name in os.environ if name != 'LC_CTYPE']",
    "find a secret among the modules": "[name for name in sys.modules if 'settings' in name or 'cli' in name]",
    "see the arguments of the program": "sys.orig_argv[9:]",
}
"""Attempts that succeed and find nothing."""

WORKS_UNLOCKED = (
    "read a file of the host",
    "read it by a descriptor",
    "read it over the root of this process",
    "read it over a folder descriptor",
    "read it by a way up",
    "read it by the system call",
    "read it through a symbolic link",
    "map it into memory",
    "see that it is there",
    "list its folder",
    "read the password file",
    "read the code of the program",
    "write to a file of the host",
    "write a new file of the host",
    "empty a file of the host",
    "empty it by opening it to read",
    "empty it by opening it for nothing",
    "remove a file of the host",
    "change the mode of a file of the host",
    "change the times of a file of the host",
    "make a named pipe",
    "go to another folder",
    "open a TCP socket",
    "open a UDP socket",
    "open a UNIX socket",
    "open an abstract socket",
    "make a pair of sockets",
    "fork",
    "fork by system call",
    "clone",
    "spawn",
    "run a program",
    "start a thread",
    "see the program that started it",
    "see it as the parent",
    "see the group of another process",
    "get a handle of the program",
    "let a pipe send it signals",
    "choose which signals",
    "read the environment of the program",
    "read its own environment as it was",
    "read the command line of the program",
    "list processes",
    "keep memory outside its address space",
)
"""Attempts that get what they want where no lock is closed, so that being stopped means something; harmless ones."""

SINGLE = {
    "read a file of the host": "S S G",
    "write to a file of the host": "S S G",
    "see that it is there": "S G G",
    "change the mode of a file of the host": "S G S",
    "list its folder": "S S G",
    "open a TCP socket": "S S S",
    "open a UDP socket": "S G S",
    "open a UNIX socket": "S G S",
    "open an abstract socket": "S S S",
    "fork": "G G S",
    "start a thread": "G G S",
    "see the program that started it": "S S S",
    "let a pipe send it signals": "S G S",
    "choose which signals": "G G S",
    "read the environment of the program": "S S G",
    "list processes": "S S G",
    "keep memory outside its address space": "G G S",
    "empty a file of the host": "S S S",
    "empty it by opening it to read": "S S S",
    "empty it by opening it for nothing": "S S S",
}
"""What each lock stops alone (Stopped, Got): namespaces with a file tree, landlock, the filter of system calls."""

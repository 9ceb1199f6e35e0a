"""The inside of the sandbox: puts walls around its own process, then runs untrusted code. See _sandbox.py.

Only `_sandbox.run` starts it. To start in 10 ms it imports as little as possible. It reads a Python literal from stdin and
writes JSON objects, one per line, to the file descriptor in its first argument. It holds nothing that the code may not see:
it knows the arguments of the calls, but not the values that they should return.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from _json import encode_basestring_ascii as quote
from itertools import count

TYPE_CHECKING = False  # typing and collections.abc take 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MEGABYTE = 1 << 20
REPORTED = 20  # refusals that are reported; a loop of them must not fill the channel
DEEPEST = 40  # levels of a returned value, and of folders
LONGEST = 50_000  # characters of a returned value
RULE = "the sandbox refuses"

# --- The first wall: an audit hook. It names what it refused, so that the policy learns what it did wrong.

READING = ("os.listdir", "os.scandir")
WRITING = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime")
HARMLESS = frozenset(("os.walk", "os.fwalk", "os.putenv", "os.unsetenv", "sys._getframe"))
REFUSED = (  # prefixes of event names
    *("os.", "subprocess.", "socket.", "ctypes.", "gc.", "pty.", "syslog.", "sqlite3.", "resource.", "signal."),
    *("fcntl.", "sys.addaudithook", "sys.settrace", "sys.setprofile", "sys._current", "code.__new__", "shutil.chown"),
)
# C modules that could reach files, memory or processes without the hook.
UNSAFE = frozenset(
    "ctypes _ctypes _ctypes_test _testcapi _testinternalcapi _testbuffer _testimportmultiple _testmultiphase _testclinic "
    "_posixsubprocess _posixshmem _multiprocessing _xxsubinterpreters _xxinterpchannels _ssl _gdbm _dbm readline _curses "
    "_tkinter nis spwd syslog ossaudiodev termios mmap".split()
)


def raise_hook(scratch: bytes, library: tuple[bytes, ...], channel: int) -> None:
    """The hook uses only local names, because the code can replace any builtin and any Python function, and sees the
    hook's variables in the traceback of a refusal."""
    write, number, limit, no_module = os.write, count(), REPORTED, ImportError
    starts, add, split, slashes, kind = str.startswith, str.__add__, bytes.split, bytes.startswith, type
    encode, decode, join, line, text, octets = str.encode, bytes.decode, bytes.join, quote, str, bytes
    is_one, step, whole, length, rule, reading, writing = isinstance, next, int, len, RULE, READING, WRITING
    harmless, prefixes, unsafe, nothing, deepest = HARMLESS, REFUSED, UNSAFE, type(None), DEEPEST
    may_write = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_TMPFILE

    def refuse(what: str, refusal: type[Exception] = PermissionError) -> None:
        if step(number) < limit:
            write(channel, encode('{"refused": ' + line(what[:100]) + "}\n"))
        raise refusal(f"{what}: {rule} it")

    def inside(path: Any, folders: tuple[bytes, ...]) -> bool:
        """Whether a path lies in one of the folders. The scratch folder holds no links, because the hook refuses them."""
        if is_one(path, text):
            path = encode(add("", path), "utf-8", "surrogateescape")
        if kind(path) is not octets:
            return False
        parts = [part for part in split(path, b"/") if part != b"" and part != b"."]
        if b".." in parts or b"site-packages" in parts or length(parts) > deepest:
            return False
        full = join(b"/", parts)
        full = b"/" + full if slashes(path, b"/") else scratch + (b"/" + full if parts else b"")
        for folder in folders:  # noqa: SIM110 (any() can be replaced)
            if full == folder or slashes(full, folder + b"/"):
                return True
        return False

    def shown(path: Any) -> str:
        if is_one(path, text):
            return add("", path)[:80]
        return decode(path, "utf-8", "backslashreplace")[:80] if kind(path) is octets else "what is no path"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if kind(path) is whole:  # a file descriptor; isinstance would trust __class__
                return
            folders = (scratch,) if flags & may_write else (scratch, *library)
            if not inside(path, folders):
                refuse("opening " + shown(path))
        elif event == "import":
            name, path = add("", arguments[0]), arguments[1]
            if name in unsafe or (path is not None and not inside(path, library)):
                refuse("importing " + name[:80], no_module)
        elif event in reading:
            path = arguments[0]
            if kind(path) is not nothing and not inside(path, (scratch, *library)):
                refuse("listing " + shown(path))
        elif event in writing:
            for path in arguments[: 2 if event == "os.rename" else 1]:
                if not inside(path, (scratch,)):
                    refuse(event + " of " + shown(path))
        elif event not in harmless:
            for prefix in prefixes:
                if starts(event, prefix):
                    refuse(event)

    sys.addaudithook(hook)


# --- The second wall: what the kernel refuses. Each part is used where the machine permits it.

NEW_USER, NEW_NET, NEW_MOUNTS, NEW_IPC = 0x10000000, 0x40000000, 0x00020000, 0x08000000
# Numbers of system calls on x86-64 and in the generic table that ARM64 uses (-1: it has no such call).
CALLS = """
fork 57 -1, vfork 58 -1, clone 56 220, clone3 435 435, execve 59 221, execveat 322 281, kill 62 129,
tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424,
pidfd_open 434 434, pidfd_getfd 438 438, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271,
prlimit64 302 261, setrlimit 160 164, socket 41 198, socketpair 53 199, connect 42 203, bind 49 200,
listen 50 201, sendto 44 206, sendmsg 46 211, io_uring_setup 425 425, unshare 272 97, setns 308 268,
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, bpf 321 280, open_tree 428 428,
move_mount 429 429, fsopen 430 430, mount_setattr 442 442, perf_event_open 298 241, userfaultfd 323 282,
keyctl 250 219, add_key 248 217, request_key 249 218, open_by_handle_at 304 265, memfd_create 319 279,
symlink 88 -1, symlinkat 266 36, link 86 -1, linkat 265 37, mknod 133 -1, mknodat 259 33, setsid 112 157,
setpgid 109 154, shmget 29 194, msgget 68 186, semget 64 190, mq_open 240 180, inotify_init1 294 26,
reboot 169 142, init_module 175 105
"""
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # the column above, the kernel's number
EPERM = 1

Library = ctypes.CDLL


def limit() -> None:
    """Limit time, memory, file size and processes. The parent watches the wall clock."""
    for what, most in (
        (resource.RLIMIT_CPU, 2),
        (resource.RLIMIT_AS, 256 * MEGABYTE),
        (resource.RLIMIT_FSIZE, MEGABYTE),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(what, (most, most))


def leave_namespaces(libc: Library, scratch: str) -> bool:
    """Enter a network without devices and a scratch folder in memory that vanishes with this process."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_USER | NEW_NET | NEW_MOUNTS | NEW_IPC) != 0:
        return bool(libc.unshare(NEW_NET | NEW_IPC) == 0)  # root in a container
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 (pathlib takes 8 ms)
            file.write(text)
    no_device_no_program_no_root = 2 | 4 | 8
    options = f"size=4m,nr_inodes=256,mode=700,uid={user},gid={group}".encode()
    if libc.mount(b"scratch", scratch.encode(), b"tmpfs", no_device_no_program_no_root, options) == 0:
        os.chdir(scratch)
    return True


def drop_privileges(libc: Library) -> None:
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capset(header, none)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges: required by the next two


def allow_files(libc: Library, scratch: str, library: Iterable[str]) -> bool:
    """Landlock: allow only the scratch folder and, for reading, the standard library."""
    create, add, restrict, version = 444, 445, 446, 1
    abi = libc.syscall(create, None, ctypes.c_size_t(0), version)
    if abi < 1:
        return False
    read, change = 1 << 2 | 1 << 3, 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14
    supported = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    handled = (ctypes.c_uint64 * 3)(supported, 3, 3)  # files; TCP; signals and abstract sockets
    rules = libc.syscall(create, handled, ctypes.c_size_t(size), 0)
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")  # shared libraries of C modules
    for path in (scratch, *library, *system):
        rights = read | change if path == scratch else read
        try:
            folder = os.open(path, os.O_PATH)
        except OSError:
            continue
        if not os.path.isdir(path):  # noqa: PTH112
            rights = 1 << 2
        beneath = (rights & supported).to_bytes(8, "little") + folder.to_bytes(4, "little")
        libc.syscall(add, rules, 1, ctypes.c_char_p(beneath), 0)
        os.close(folder)
    restricted = bool(libc.syscall(restrict, rules, 0) == 0)
    os.close(rules)
    return restricted


def forbid_calls(libc: Library) -> bool:
    """Seccomp: refuse processes, signals, sockets and links to all code of this process."""
    machine = os.uname().machine
    if machine not in MACHINES:
        return False
    column, name = MACHINES[machine]
    numbers = [int(call.split()[1 + column]) for call in CALLS.split(",")]
    numbers = [number for number in numbers if number >= 0]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    code = [(load, 0, 0, 4), (equal, 0, len(numbers) + 3, name), (load, 0, 0, 0)]
    code += [(at_least, len(numbers) + 1, 0, 0x40000000)]  # x32: other numbers for the same calls
    code += [(equal, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    code += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | EPERM)]
    packed = b"".join(
        op.to_bytes(2, "little") + bytes((yes, no)) + value.to_bytes(4, "little") for op, yes, no, value in code
    )
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = (ctypes.c_uint64 * 2)(len(code), ctypes.addressof(buffer))
    return bool(libc.prctl(22, 2, program, 0, 0) == 0)


# --- The code


class OddError(Exception):
    """A value that cannot be reported to the parent."""


def encode(value: Any, depth: int = 0) -> str:
    """JSON of a plain value. Types must match exactly, because a subclass could claim to equal anything."""
    kind = type(value)
    if depth > DEEPEST:
        raise OddError(f"a value of more than {DEEPEST} levels")
    if value is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if kind is int or (kind is float and value - value == 0):  # neither infinite nor NaN
        return repr(value)
    if kind is str:
        return str(quote(value))
    if kind is list:
        return "[" + ", ".join([encode(part, depth + 1) for part in value]) + "]"
    if kind is dict and all(type(key) is str for key in value):
        return "{" + ", ".join([quote(key) + ": " + encode(part, depth + 1) for key, part in value.items()]) + "}"
    raise OddError(f"a {kind.__name__}" + (" whose keys are not all text" if kind is dict else ""))


def describe(problem: BaseException) -> str:
    """The last line of a traceback and the line number in the code."""
    place = problem.lineno if isinstance(problem, SyntaxError) else None
    step = problem.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<code>":
            place = step.tb_lineno
        step = step.tb_next
    try:
        text = str(problem.msg if isinstance(problem, SyntaxError) else problem)[:300]
    except BaseException:
        text = ""
    return type(problem).__name__ + (f": {text}" if text else "") + (f" (line {place})" if place else "")


def serve(code: str, name: str, calls: list[list[Any]], tell: Callable[[str, str], None]) -> None:
    """Load the code and make each call."""
    module = type(sys)("solution")
    del sys.modules["_runner"]
    sys.modules["solution"] = sys.modules["__main__"] = module
    try:
        exec(compile(code, "<code>", "exec", dont_inherit=True), module.__dict__)
        if name not in module.__dict__:
            raise OddError(f"it defines no {name}")
    except OddError as problem:
        tell("failed", quote(str(problem)))
        return
    except BaseException as problem:
        tell("failed", quote(describe(problem)))
        return
    tell("loaded", "true")
    for arguments in calls:
        try:
            value = encode(module.__dict__[name](*arguments))
            if len(value) > LONGEST:
                raise OddError(f"a value of more than {LONGEST} characters")
        except OddError as problem:
            tell("odd", quote(str(problem)))
        except BaseException as problem:
            tell("raised", quote(describe(problem)))
        else:
            tell("value", value)


def main(channel: int) -> None:
    request = eval(sys.stdin.buffer.read())
    quit_now, write, scratch = os._exit, os.write, os.getcwd()  # noqa: PTH109
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    libc, wanted = ctypes.CDLL(None, use_errno=True), request["walls"]
    libc.prctl(1, 9, 0, 0, 0)  # die with the parent
    walls = [name for name in ("namespace",) if name in wanted and leave_namespaces(libc, scratch)]
    limit()
    drop_privileges(libc)
    walls += [name for name in ("files",) if name in wanted and allow_files(libc, scratch, sys.path)]
    walls += [name for name in ("calls",) if name in wanted and forbid_calls(libc)]

    def tell(kind: str, value: str) -> None:
        write(channel, f'{{"{kind}": {value}}}\n'.encode())

    if "hook" in wanted:
        for name in [name for name in sys.modules if name in UNSAFE or name.startswith("ctypes.")]:
            sys.modules.pop(name).__dict__.clear()  # the methods of its classes lead to functions such as memmove
        for name in ("ctypes", "resource", "Library"):
            del globals()[name]
        raise_hook(os.fsencode(scratch), tuple(map(os.fsencode, sys.path)), channel)
        walls.append("hook")
    os.environ.clear()
    sys.argv[:], sys.dont_write_bytecode = [], True
    tell("walls", "[" + ", ".join(map(quote, walls)) + "]")
    del libc, stream
    serve(request["code"], request["name"], request["calls"], tell)
    quit_now(0)

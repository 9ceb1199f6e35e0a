"""The inside of the sandbox: puts walls around its own process, then runs untrusted code. See __init__.py.

Only `sandbox.run` starts it. To start in 10 ms it imports as little as possible. It reads a Python literal from stdin and
writes JSON objects, one per line, to the socket in its first argument. It holds nothing that the code may not see: it knows
the arguments of the calls, but not the values that they should return, and it decides on nothing once the code runs.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from _json import encode_basestring_ascii as quote

TYPE_CHECKING = False  # typing and collections.abc take 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any

MEGABYTE = 1 << 20
MEMORY = 256 * MEGABYTE
DEEPEST = 40  # levels of a returned value
LONGEST = 50_000  # characters of a returned value
LINES = 100_000  # that the code may run; the longest reference solution of code_repair runs 5,303 in all its tests
LATE = 79  # the exit status of a process whose code would run more

# --- The walls: what the kernel refuses. Each is used where the machine permits it.

NEW_USER, NEW_NET, NEW_MOUNTS, NEW_IPC = 0x10000000, 0x40000000, 0x00020000, 0x08000000

Library = ctypes.CDLL


def limit() -> None:
    """Limit time, memory, file size and processes. The parent watches the wall clock."""
    # SIGXCPU after 2 s: at the second limit SIGKILL, as of other causes.
    resource.setrlimit(resource.RLIMIT_CPU, (2, 3))
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
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
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 (pathlib takes 8 ms)
                file.write(text)
    except OSError:  # the machine permits the namespace, but nobody in it: as for root without privileges
        return False
    no_device_no_program_no_root = 2 | 4 | 8
    options = f"size=4m,nr_inodes=256,mode=700,uid={user},gid={group}".encode()
    if libc.mount(b"scratch", scratch.encode(), b"tmpfs", no_device_no_program_no_root, options) == 0:
        os.chdir(scratch)
    return True


def drop_privileges(libc: Library) -> None:
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capset(header, none)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges: required by the next two


READ = 1 << 2 | 1 << 3  # rights of Landlock: to read files, and to list folders
CHANGE = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14  # to write, make, move and remove both
OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # what a rule may allow on what is no folder
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")  # shared libraries of C modules


def landlock_version(libc: Library) -> int:
    """Of the kernel's Landlock; below 1 where there is none."""
    create, version = 444, 1
    return int(libc.syscall(create, None, ctypes.c_size_t(0), version))


def allow_files(libc: Library, allowed: Iterable[tuple[str, int]], network: int = 3, ports: Iterable[int] = ()) -> bool:
    """Landlock: allow only these rights at and beneath these paths. Of TCP, `network` forbids to bind (1) and to connect
    (2), but for connections to these ports; kernels before 6.7 forbid neither."""
    create, add, restrict = 444, 445, 446
    abi = landlock_version(libc)
    if abi < 1:
        return False
    supported = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    handled = (ctypes.c_uint64 * 3)(supported, network, 3)  # files; TCP; signals and abstract sockets
    rules = libc.syscall(create, handled, ctypes.c_size_t(size), 0)
    for path, rights in allowed:
        try:
            folder = os.open(path, os.O_PATH)
        except OSError:
            continue
        if not os.path.isdir(path):  # noqa: PTH112
            rights &= OF_FILES
        beneath = (rights & supported).to_bytes(8, "little") + folder.to_bytes(4, "little")
        libc.syscall(add, rules, 1, ctypes.c_char_p(beneath), 0)
        os.close(folder)
    for port in ports if abi >= 4 else ():
        libc.syscall(add, rules, 2, (ctypes.c_uint64 * 2)(2, port), 0)
    restricted = bool(libc.syscall(restrict, rules, 0) == 0)
    os.close(rules)
    return restricted


def install(libc: Library, program: bytes, flags: int) -> int:
    """Install a seccomp filter; returns what the system call returns."""
    filters, by_flags = 317, 1
    buffer = ctypes.create_string_buffer(program, len(program))
    packed = (ctypes.c_uint64 * 2)(len(program) // 8, ctypes.addressof(buffer))
    return int(libc.syscall(filters, by_flags, flags, packed))


def send(libc: Library, channel: int, text: bytes, descriptor: int) -> bool:
    """Send a text with a descriptor over a Unix socket. ctypes is imported anyway, and `_socket` takes 0.5 ms."""
    size, socket_level, rights = 20, 1, 1
    fields = ((size, 8), (socket_level, 4), (rights, 4), (descriptor, 8))
    buffer = ctypes.create_string_buffer(text, len(text))
    control = ctypes.create_string_buffer(b"".join(value.to_bytes(width, "little") for value, width in fields), 24)
    parts = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), len(text))
    message = (ctypes.c_uint64 * 7)(0, 0, ctypes.addressof(parts), 1, ctypes.addressof(control), 24, 0)
    return bool(libc.sendmsg(channel, message, 0) == len(text))


def raise_walls(channel: int, request: dict[str, Any]) -> None:
    """Raise the walls that are wanted and report those that stand. The parent takes over the decisions on system calls."""
    wanted, scratch, with_listener = request["walls"], os.getcwd(), 8  # noqa: PTH109
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, 9, 0, 0, 0)  # die with the parent
    walls = [name for name in ("namespace",) if name in wanted and leave_namespaces(libc, scratch)]
    limit()
    drop_privileges(libc)
    allowed = [(scratch, READ | CHANGE), *((path, READ) for path in (*sys.path, *LIBRARIES))]
    walls += [name for name in ("files",) if name in wanted and allow_files(libc, allowed)]
    listener = -1
    if "calls" in wanted and os.uname().machine == "x86_64":
        listener = install(libc, request["program"], with_listener)
    walls += ["calls"] if listener >= 0 else []
    report = f'{{"walls": [{", ".join(map(quote, walls))}], "library": [{", ".join(map(quote, sys.path))}]}}\n'
    if listener < 0:
        os.write(channel, report.encode())
    else:
        sent = send(libc, channel, report.encode(), listener)
        os.close(listener)
        if not sent or install(libc, request["last_program"], 0) != 0:
            os._exit(1)
    if set(request["needed"]) - set(walls):
        os._exit(1)


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


def counter(late: Callable[[], object]) -> Callable[..., Any]:
    """A trace function for sys.settrace that counts the lines that the code runs, its library's apart, and calls `late`
    after LINES. What an endless loop has done by then is always the same, which a clock cannot promise."""
    left = LINES

    def count(frame: FrameType, event: str, value: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                late()
        return count

    def enter(frame: FrameType, event: str, value: object) -> Any:
        name = frame.f_code.co_filename
        return count if name[:1] == "<" and name[:7] != "<frozen" else None  # <code>, or <string> where it calls exec

    return enter


def serve(
    code: str, name: str, calls: list[list[Any]], tell: Callable[[str, str], None], late: Callable[[], object]
) -> None:
    """Load the code and make each call; `late` ends it where it runs too many lines."""
    count = counter(late)
    module = type(sys)("solution")
    if sys.modules.pop("_runner", None):  # in a process of the code's own
        sys.modules["solution"] = sys.modules["__main__"] = module
    try:
        program = compile(code, "<code>", "exec", dont_inherit=True)
        sys.settrace(count)
        exec(program, module.__dict__)
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
            sys.settrace(count)  # again, for an error at the recursion limit ends it
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
    quit_now, write = os._exit, os.write
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # pyrefly: ignore[missing-attribute]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    raise_walls(channel, request)

    def tell(kind: str, value: str) -> None:
        write(channel, f'{{"{kind}": {value}}}\n'.encode())

    os.environ.clear()
    os.environ["HOME"] = "/"  # without it sysconfig, which zoneinfo imports, asks the system for the user's folder
    sys.argv[:], sys.dont_write_bytecode = [], True
    del stream
    serve(request["code"], request["name"], request["calls"], tell, lambda: quit_now(LATE))
    quit_now(0)

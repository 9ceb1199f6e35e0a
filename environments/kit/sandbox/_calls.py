"""Decides on the system calls of the sandboxed process: most of them in the kernel, those with a path in this process.

`program` is the seccomp filter that the child installs before it runs any code. What a Python program needs is allowed. What
the filter does not know does not exist there (ENOSYS). Attempts to leave the sandbox are suspended by the kernel until
`Watch`, in the parent, has named, counted and refused them; calls with a path go on if the path is inside. The child holds
no descriptor of this and cannot change it. A path cannot change after it was read, because the child has one thread and
shares no memory that can be written.

Numbers are those of x86-64. Paths are also held by Landlock (_runner.py), which does not count.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import select
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST_REFUSED = 20  # refusals that are named; a loop of them is a single idea
AT_SCRATCH = 0xFFFFFF9C  # AT_FDCWD: the process cannot leave its folder

# --- The system calls of x86-64, by name and number

# What a Python program needs. sendmsg and seccomp are the runner's, which forbids them before any code runs (_runner.py).
ALLOWED = """
read 0, write 1, close 3, stat 4, fstat 5, lstat 6, poll 7, lseek 8, mmap 9, mprotect 10, munmap 11, brk 12,
rt_sigaction 13, rt_sigprocmask 14, rt_sigreturn 15, pread64 17, pwrite64 18, readv 19, writev 20, access 21, pipe 22,
select 23, sched_yield 24, mremap 25, msync 26, madvise 28, dup 32, dup2 33, pause 34, nanosleep 35, getitimer 36,
alarm 37, setitimer 38, getpid 39, sendfile 40, sendmsg 46, exit 60, wait4 61, uname 63, fsync 74, fdatasync 75,
ftruncate 77, getdents 78, getcwd 79, readlink 89, umask 95, gettimeofday 96, getrlimit 97, getrusage 98, sysinfo 99,
times 100, getuid 102, getgid 104, geteuid 107, getegid 108, getppid 110, getpgrp 111, getgroups 115, getresuid 118,
getresgid 120, getpgid 121, getsid 124, rt_sigpending 127, rt_sigtimedwait 128, rt_sigsuspend 130, sigaltstack 131,
statfs 137, fstatfs 138, getpriority 140, sched_getparam 143, sched_getscheduler 145, sched_get_priority_max 146,
sched_get_priority_min 147, sched_rr_get_interval 148, arch_prctl 158, setrlimit 160, gettid 186, time 201, futex 202,
sched_getaffinity 204, getdents64 217, set_tid_address 218, restart_syscall 219, fadvise64 221, clock_gettime 228,
clock_getres 229, clock_nanosleep 230, exit_group 231, waitid 247, newfstatat 262, readlinkat 267, faccessat 269,
pselect6 270, ppoll 271, set_robust_list 273, fallocate 285, dup3 292, pipe2 293, preadv 295, pwritev 296, getcpu 309,
seccomp 317, getrandom 318, membarrier 324, copy_file_range 326, statx 332, rseq 334, close_range 436, faccessat2 439
"""
# What only an attempt to leave the sandbox needs, one kind of attempt per line. These are refused and counted.
REFUSED = """
starting a process: clone 56, fork 57, vfork 58
running a program: execve 59, execveat 322
sending a signal: kill 62, rt_sigqueueinfo 129, tkill 200, tgkill 234, rt_tgsigqueueinfo 297, pidfd_send_signal 424
reaching another process: ptrace 101, migrate_pages 256, move_pages 279, prlimit64 302, process_vm_readv 310, \
process_vm_writev 311, kcmp 312, pidfd_open 434, pidfd_getfd 438, process_madvise 440
leaving the group of processes: setpgid 109, setsid 112
changing priorities or cores: setpriority 141, sched_setparam 142, sched_setscheduler 144, sched_setaffinity 203, \
ioprio_set 251, sched_setattr 314
changing a file's owner, mode, times or attributes: chmod 90, fchmod 91, chown 92, fchown 93, lchown 94, utime 132, \
setxattr 188, lsetxattr 189, fsetxattr 190, removexattr 197, lremovexattr 198, fremovexattr 199, utimes 235, \
fchownat 260, futimesat 261, fchmodat 268, fchmodat2 452, setxattrat 463, removexattrat 466
making a link, a pipe with a name or a device: link 86, symlink 88, mknod 133, mknodat 259, linkat 265, symlinkat 266
leaving the folder: chdir 80, fchdir 81, pivot_root 155, chroot 161, mount 165, umount2 166, unshare 272, \
open_by_handle_at 304, setns 308, open_tree 428, move_mount 429, fsopen 430, fsconfig 431, fsmount 432, mount_setattr 442
using a socket: socket 41, connect 42, accept 43, sendto 44, recvmsg 47, bind 49, listen 50, socketpair 53, \
accept4 288, recvmmsg 299, sendmmsg 307
sharing memory or messages: shmget 29, shmat 30, shmctl 31, semget 64, semop 65, msgget 68, msgsnd 69, mq_open 240, \
memfd_create 319, memfd_secret 447
watching files: inotify_init 253, inotify_init1 294, fanotify_init 300
changing the user or rights: setuid 105, setgid 106, setreuid 113, setregid 114, setgroups 116, setresuid 117, \
setresgid 119, setfsuid 122, setfsgid 123, capset 126, personality 135, prctl 157
controlling a device: ioctl 16
using fcntl for more than flags and locks: fcntl 72
reaching the kernel: modify_ldt 154, adjtimex 159, acct 163, settimeofday 164, swapon 167, reboot 169, iopl 172, \
sethostname 170, ioperm 173, init_module 175, delete_module 176, clock_settime 227, kexec_load 246, add_key 248, \
request_key 249, keyctl 250, perf_event_open 298, clock_adjtime 305, finit_module 313, bpf 321, userfaultfd 323, \
io_uring_setup 425, io_uring_enter 426, io_uring_register 427, landlock_create_ruleset 444
"""


def _numbers(text: str) -> dict[int, str]:
    """The names of "name number, name number" by number."""
    return {int(number): name for name, number in (call.split() for call in text.split(","))}


NAMES = {
    number: f"{kind} ({name})"
    for kind, _, calls in (line.partition(":") for line in REFUSED.strip().splitlines())
    for number, name in _numbers(calls).items()
}
IOCTL, CLONE, KILL, FCNTL, TKILL, TGKILL, PRLIMIT = 16, 56, 62, 72, 200, 234, 302


class PathCall(NamedTuple):
    """A system call with paths: which of its arguments are a folder's descriptor and a path in it, and its flags."""

    verb: str
    paths: tuple[tuple[int | None, int], ...]
    flags: int | None = None  # without flags it writes


PATH_CALLS = {
    2: PathCall("opening", ((None, 0),), 1),
    76: PathCall("cutting", ((None, 0),)),
    82: PathCall("renaming", ((None, 0), (None, 1))),
    83: PathCall("making the folder", ((None, 0),)),
    84: PathCall("removing", ((None, 0),)),
    85: PathCall("opening", ((None, 0),)),
    87: PathCall("removing", ((None, 0),)),
    257: PathCall("opening", ((0, 1),), 2),
    258: PathCall("making the folder", ((0, 1),)),
    263: PathCall("removing", ((0, 1),)),
    264: PathCall("renaming", ((0, 1), (2, 3))),
    280: PathCall("changing the times of", ((0, 1),)),
    316: PathCall("renaming", ((0, 1), (2, 3))),
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_TMPFILE & ~os.O_DIRECTORY
# What the C library, OpenSSL and Python (after a fork, since 3.12) read by themselves. Landlock decides on it; no attempt to
# leave the sandbox is counted.
SYSTEM = tuple(
    b"/lib /lib64 /usr/lib /usr/lib64 /usr/local/ssl /usr/share/zoneinfo /usr/share/locale /etc/ssl /etc/ld.so.cache "
    b"/etc/ld.so.preload /etc/localtime /etc/nsswitch.conf /sys/devices/system /proc/sys /proc/stat /proc/meminfo "
    b"/proc/self/stat /dev/urandom /dev/random /dev/null".split()
)
SHARED_LIBRARY = re.compile(rb"/(?:[^/]+/)*lib[^/]+\.so[.0-9]*")

# --- The filter

LOAD, JUMP, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06  # of the kernel's packet filters
ALLOW, ASK, KILL_PROCESS, NO_SUCH_CALL, TRY_LATER = 0x7FFF0000, 0x7FC00000, 0x80000000, 0x00050000 | 38, 0x00050000 | 11
FORBID = 0x00050000 | 1
X86_64, X32 = 0xC000003E, 0x40000000
THREAD = 0x00010000
# Of fcntl: duplicates, flags and locks, but not F_SETOWN, F_SETSIG or F_SETLEASE, which send signals.
DESCRIPTOR_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
TERMINAL_QUESTIONS = (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONBIO, FIONCLEX, FIOCLEX

Step = tuple[int, int, int, int]  # operation, jump if true, jump if false, value


def program(pid: int) -> bytes:
    """The filter of the process `pid`, as the kernel takes it."""
    steps: list[Step] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, X86_64), (RETURN, 0, 0, KILL_PROCESS), (LOAD, 0, 0, 0)]
    steps += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL_PROCESS)]
    for number in (KILL, TKILL, TGKILL):  # to itself alone, as abort() does
        steps += _when(number, 0, EQUAL, (pid,), ALLOW)
    return _packed(steps) + _program_of_all()


@functools.cache
def _program_of_all() -> bytes:
    """The rest of the filter, which is the same for every process."""
    steps = _when(CLONE, 0, ANY_BIT, (THREAD,), TRY_LATER)  # no threads: an answer that is no refusal
    steps += _when(FCNTL, 1, EQUAL, DESCRIPTOR_COMMANDS, ALLOW) + _when(IOCTL, 1, EQUAL, TERMINAL_QUESTIONS, ALLOW)
    steps += _when(PRLIMIT, 0, EQUAL, (0,), ALLOW)
    steps += _each(list(_numbers(ALLOWED)), ALLOW) + _each([*NAMES, *PATH_CALLS], ASK)
    return _packed([*steps, (RETURN, 0, 0, NO_SUCH_CALL)])


@functools.cache
def last_program() -> bytes:
    """The filter that forbids what only the runner needed: to hand over the watch and to install filters."""
    return _packed([(LOAD, 0, 0, 0), *_each([46, 317], FORBID), (RETURN, 0, 0, ALLOW)])


def _each(numbers: Sequence[int], answer: int) -> list[Step]:
    """One answer to all calls of these numbers."""
    tests = [(EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    return [*tests, (JUMP, 0, 0, 1), (RETURN, 0, 0, answer)]


def _when(number: int, argument: int, test: int, values: Sequence[int], answer: int) -> list[Step]:
    """An answer to a call if its argument has one of the values; otherwise the parent is asked."""
    tests = [(test, len(values) - place, 0, value) for place, value in enumerate(values)]
    body = [(LOAD, 0, 0, 16 + 8 * argument), *tests, (RETURN, 0, 0, ASK), (RETURN, 0, 0, answer)]
    return [(EQUAL, 0, len(body), number), *body]


def _packed(steps: Iterable[Step]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


# --- The parent's part

RECEIVE, SEND = 0xC0502100, 0xC0182101  # ioctl's SECCOMP_IOCTL_NOTIF_RECV and _SEND
NOTICE, REPLY = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
GO_ON, NOT_PERMITTED = 1, 1
MEMORY = "/proc/%d/mem"


class Watch:
    """Answers the calls of one child on which the kernel asks. `refused` names those that were refused."""

    def __init__(self, pid: int, scratch: str) -> None:
        self.pid, self.refused, self.listener, self.memory = pid, list[str](), -1, -1
        self.scratch = os.fsencode(scratch)
        self.readable: tuple[bytes, ...] = (self.scratch, *SYSTEM)
        with contextlib.suppress(OSError):  # without it no path can be seen, and the wall does not stand
            self.memory = os.open(MEMORY % pid, os.O_RDONLY | os.O_CLOEXEC)

    def allow_reading(self, library: Iterable[str]) -> None:
        folders = [os.fsencode(path) for path in library]
        self.readable += (*folders, *map(os.path.realpath, folders))

    def close(self) -> None:
        for descriptor in (self.listener, self.memory):
            if descriptor >= 0:
                os.close(descriptor)

    def answer(self) -> bool:
        """Answer the call that waits, if there is one; False when the child has ended."""
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        if not any(event & select.POLLIN for _, event in poll.poll(0)):
            return False
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self.listener, RECEIVE, notice)
            place, _, _, number, _, _, *arguments = NOTICE.unpack(notice)
            refusal = self.refusal(number, arguments)
            error, flag = (-NOT_PERMITTED, 0) if refusal else (0, GO_ON)
            if refusal and len(self.refused) < MOST_REFUSED:
                self.refused.append(refusal)
            fcntl.ioctl(self.listener, SEND, REPLY.pack(place, 0, error, flag))
        except FileNotFoundError:  # a signal ended the call, or the child
            pass
        return True

    def refusal(self, number: int, arguments: Sequence[int]) -> str:
        """What is refused about a call; empty where it may go on."""
        if number not in PATH_CALLS:
            return NAMES.get(number, f"the system call {number}")
        call = PATH_CALLS[number]
        reads = call.flags is not None and not arguments[call.flags] & WRITING
        for folder, position in call.paths:
            path = self._path(arguments[position])
            full = self._full(path, None if folder is None else arguments[folder])
            if reads and SHARED_LIBRARY.fullmatch(full):
                continue  # the loader looks for it in several folders
            if not _inside(full, self.readable if reads else (self.scratch,)):
                return f"{call.verb} {path[:80].decode('utf-8', 'backslashreplace') or 'what is no path'}"
        return ""

    def _path(self, address: int) -> bytes:
        """The text at an address of the child; empty where there is none."""
        try:
            text, end, _ = os.pread(self.memory, 4096, address).partition(b"\0")
        except (OSError, OverflowError):
            return b""
        return text if end else b""

    def _full(self, path: bytes, folder: int | None) -> bytes:
        """The path from the root on; empty where there is none."""
        if not path or path.startswith(b"/"):
            return path
        if folder is None or folder & 0xFFFFFFFF == AT_SCRATCH:
            return self.scratch + b"/" + path
        try:
            return os.fsencode(os.readlink(f"/proc/{self.pid}/fd/{folder & 0xFFFFFFFF}")) + b"/" + path  # noqa: PTH115
        except OSError:
            return b""


def _inside(path: bytes, folders: Iterable[bytes]) -> bool:
    """Whether a full path lies in one of the folders. The scratch folder holds no links, because making one is refused."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if not parts or b".." in parts or b"site-packages" in parts:
        return False
    full = b"/" + b"/".join(parts)
    return any(full == folder or full.startswith(folder + b"/") for folder in folders)

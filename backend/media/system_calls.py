"""Denies system calls that opening an image or a clip never needs, by a Linux seccomp filter.

A malicious file that takes control of its reader then has no network, no access to other processes' memory, and no calls for
administrators and debuggers. Without the filter, the limits of memory, time and files still apply. `python -m
backend.media.system_calls` tests the filter: exit code 0 if it works on this machine.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst, and include/uapi/linux/{seccomp,bpf_common,audit}.h.
"""

import ctypes
import errno
import platform
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Codes of instructions: BPF_LD|W|ABS, BPF_JMP|JEQ, BPF_JMP|JGE, BPF_JMP|JSET and BPF_RET.
_LOAD, _EQUALS, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # byte offsets of fields in struct seccomp_data
_NO_NEW_PRIVILEGES, _SET_FILTER, _ALL_THREADS = 38, 1, 1
# A call of `clone` with any of these flags is denied: CLONE_NEWNS, CLONE_NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET.
_NAMESPACES = 0x7E020000
_X32 = 0x40000000  # first system call number of the x32 interface of x86-64. All calls of this interface are denied

# Denied system calls that have the same number on both architectures: io_uring_setup, _enter, _register; open_tree, move_mount,
# fsopen, fsconfig, fsmount; pidfd_send_signal, pidfd_open, pidfd_getfd; process_madvise; mount_setattr.
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 424, 434, 438, 440, 442)


@dataclass(frozen=True)
class _Machine:
    """System call numbers of one processor architecture. `denied`: socket, ptrace, process_vm_readv, process_vm_writev,
    kexec_load, kexec_file_load, init_module, finit_module, delete_module, mount, umount2, pivot_root, chroot, unshare, setns,
    bpf, perf_event_open, userfaultfd, keyctl, add_key, request_key, open_by_handle_at."""

    architecture: int
    seccomp: int
    clone: int
    clone3: int
    denied: tuple[int, ...]


_X86_DENIED = (41, 101, 310, 311, 246, 320, 175, 313, 176, 165, 166, 155, 161, 272, 308, 321, 298, 323, 250, 248, 249, 304)
_ARM_DENIED = (198, 117, 270, 271, 104, 294, 105, 273, 106, 40, 39, 41, 51, 97, 268, 280, 241, 282, 219, 217, 218, 265)
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, 56, 435, _X86_DENIED),
    "aarch64": _Machine(0xC00000B7, 277, 220, 435, _ARM_DENIED),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def deny_system_calls() -> bool:
    """Forbid this process, its threads and its children to use the denied system calls. This cannot be undone. Return whether the
    filter is active. It is not active if the system does not support such filters."""
    machine = _MACHINES.get(platform.machine()) if sys.platform == "linux" else None
    if machine is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    # The kernel runs this program for each call. Each test is followed by an instruction that denies the call. A test jumps over
    # this instruction if the call may be allowed.
    denied = _pack_instruction(_RETURN, _ERRNO | errno.EPERM)
    steps = [_pack_instruction(_LOAD, _ARCHITECTURE_AT), _pack_instruction(_EQUALS, machine.architecture, 1, 0), denied]
    steps.append(_pack_instruction(_LOAD, _NUMBER_AT))
    if machine.architecture == _MACHINES["x86_64"].architecture:
        steps += [_pack_instruction(_AT_LEAST, _X32, 0, 1), denied]
    for number in (*machine.denied, *_COMMON):
        steps += [_pack_instruction(_EQUALS, number, 0, 1), denied]
    # A filter cannot read the flags of clone3, because they are in memory. Therefore clone3 fails with ENOSYS, as on systems that
    # lack it, and the C library calls clone instead.
    steps += [_pack_instruction(_EQUALS, machine.clone3, 0, 1), _pack_instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    steps += [_pack_instruction(_EQUALS, machine.clone, 0, 3), _pack_instruction(_LOAD, _FIRST_ARGUMENT_AT)]
    steps += [_pack_instruction(_ANY_BIT, _NAMESPACES, 0, 1), denied]
    code = b"".join([*steps, _pack_instruction(_RETURN, _ALLOW)])
    program = _Program(len(code) // 8, code)
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return library.syscall(machine.seccomp, _SET_FILTER, _ALL_THREADS, ctypes.byref(program)) == 0


def _pack_instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def main() -> int:
    """Test the filter on this process."""
    if not deny_system_calls():
        return 1
    try:
        socket.socket().close()
    except PermissionError:
        return subprocess.run([sys.executable, "-c", ""]).returncode
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Locks of the kernel (flock) on files that processes share: never broken, and never waited for without a word.

Whoever has to wait longer than ``PATIENCE_SECONDS`` says so, with the process that holds the lock where this machine's
kernel tells, and goes on waiting: a process that is stopped in the middle of a write may go on with it at any time.
"""

import fcntl
import os
import sys
import threading
from pathlib import Path

from vqkit.errors import Rejected

PATIENCE_SECONDS = 3.0  # before the first notice; the time between two doubles
UNKNOWN = "a process that this machine does not know"


def tell(text):
    """Where notices go; a worker, whose standard error is a log, puts its own function here."""
    print(f"notice: {text}", file=sys.stderr, flush=True)


def take(handle, path, *, wait=True):
    """Take the exclusive lock of ``path``, which is open as ``handle``; it is held until the file is closed.

    Returns:
        True, or False where another process holds it and ``wait`` is not wanted.

    Raises:
        Rejected: E_FILE_ACCESS on a file system without such locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        if not wait:
            return False
    except OSError as error:
        raise Rejected("E_FILE_ACCESS", str(path), "a file system with locks (flock)", error.strerror) from None
    taken = threading.Event()
    teller = threading.Thread(target=_tell_until, args=(taken, path), daemon=True)
    teller.start()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    finally:
        taken.set()
        teller.join()
    return True


def holder(path):
    """The id of the process on this machine that holds a lock of ``path``, or None."""
    try:
        state = os.stat(path, follow_symlinks=False)
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    named = {line[4] for line in lines if line[1] == "FLOCK" and line[5].endswith(f":{state.st_ino}")}
    return next((int(pid) for pid in sorted(named) if _has_open(pid, state)), None)


def is_stopped(pid):
    """Whether a process is suspended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def described(pid):
    """A holder in words."""
    if pid is None:
        return UNKNOWN
    return f"process {pid}" + (f", which is suspended (kill -CONT {pid} lets it go on)" if is_stopped(pid) else "")


def _tell_until(taken, path):
    patience = PATIENCE_SECONDS
    while not taken.wait(patience):
        tell(f"waiting for the lock of {path}, held by {described(holder(path))}")
        patience *= 2


def _has_open(pid, state):
    """Whether a process has this very file open: numbers of files are unique within one file system only."""
    try:
        handles = [os.stat(entry) for entry in os.scandir(f"/proc/{pid}/fd") if entry.name.isdigit()]
    except OSError:
        return False
    return any(os.path.samestat(handle, state) for handle in handles)

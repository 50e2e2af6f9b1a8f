"""Files that are written once and read once.

``write_once`` leaves either the whole file, synced and read-only, or nothing under its name. ``read_once`` opens
without following links, looks at the size of what it opened, and reads exactly that; callers hash the bytes that
they got and never open a second time.
"""

import contextlib
import os
import stat

from vqkit.errors import Rejected

MAX_BYTES = 1 << 30


def write_once(path, data, *, mode=0o444):
    """Create ``path`` with ``data`` (bytes): exclusive, synced with its folder, then read-only.

    The bytes are written to a temporary name in the same folder and linked to ``path``, so that no reader ever sees
    half a file, even after a crash.

    Raises:
        Rejected: E_FILE_EXISTS when the name is taken, E_FILE_WRITE when the disk did not take all bytes.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        raise Rejected("E_FILE_EXISTS", path.name, "a name that is not taken", "an existing file") from None
    except OSError as error:
        raise Rejected("E_FILE_WRITE", path.name, f"{len(data)} bytes on disk", error.strerror) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(path.parent)


def sync_folder(folder):
    """Make the entries of ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path, flags=os.O_RDONLY, *, folder=None):
    """Open a regular file, no link followed and no pipe waited for; in ``folder``, an open directory, where given.

    Raises:
        Rejected: E_FILE_MISSING, or E_FILE_KIND (link, folder, pipe, device, or no permission).
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except FileNotFoundError:
        raise Rejected("E_FILE_MISSING", path.name, "a file", "nothing") from None
    except OSError as error:
        access = "readable" if flags == os.O_RDONLY else "writable"
        raise Rejected("E_FILE_KIND", path.name, f"a {access} regular file", error.strerror) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise Rejected("E_FILE_KIND", path.name, "a regular file", stat.filemode(mode))
    return handle


def read_once(path, *, max_bytes=MAX_BYTES, folder=None):
    """The bytes of a regular file, opened once by ``open_regular``, which see.

    Raises:
        Rejected: E_FILE_MISSING, E_FILE_KIND or E_FILE_SIZE.
    """
    with open(open_regular(path, folder=folder), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise Rejected("E_FILE_SIZE", path.name, f"at most {max_bytes} bytes", f"{size} bytes")
        data = file.read(size + 1)
    if len(data) != size:
        raise Rejected("E_FILE_SIZE", path.name, f"{size} bytes, as the file system says", f"{len(data)}")
    return data


def replace(path, data):
    """Write ``data`` under ``path`` atomically; for results that may be computed again, never for evidence.

    Raises:
        Rejected: E_FILE_WRITE when the disk does not take it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise Rejected("E_FILE_WRITE", path.name, f"{len(data)} bytes on disk", error.strerror) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(path.parent)

"""What the verifier holds itself, and how it opens what it does not trust."""

import errno
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from evaluator import signature
from evaluator.metrics import Originals
from vqkit.errors import Rejected
from vqkit.formats import contract, dataset, files, source


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The verifier's dataset, as a contract selects it."""

    id: str
    digest: str
    originals: Originals


class Held:
    """The verifier's own inputs; each is read once, however many runs are verified.

    Args:
        data: the folder of the canonical dataset, or None: then nothing that needs pixels can be checked.
        source: the root of the source tree to compare with; None takes the tree that this package belongs to.
        lock: the file that binds contract names to digests; None takes the shipped one.
        key: the public key (PEM file) that every manifest must be signed with; None asks for no signature.
        all_images: whether V4 replays every image; otherwise those that the seal draws.
    """

    def __init__(self, *, data=None, source=None, lock=None, key=None, all_images=False):
        self.data, self.source, self.key, self.all_images = data, source, key, all_images
        self._lock_file = lock
        self._datasets = {}

    @cached_property
    def lock(self):
        """Contract name → digest."""
        return contract.read_lock(file=self._lock_file)

    @cached_property
    def public_key(self):
        """The key behind ``key``."""
        return signature.read_key(self.key)

    @cached_property
    def listing(self):
        """The source files, or None where this package stands without a runner beside it."""
        if self.source is None and not (source.ROOT / source.PACKAGES[0]).is_dir():
            return None
        return source.listing(self.source or source.ROOT)

    def dataset(self, rules):
        """The ``Pixels`` that the contract ``rules`` selects; needs ``data``. Raises ``Rejected`` as opening does."""
        counts = dataset.contract_counts(rules)
        key = tuple(sorted(counts.items()))
        if key not in self._datasets:
            opened = dataset.open_dataset(self.data, counts)
            originals = Originals(opened.images["evaluation"])
            self._datasets[key] = Pixels(id=opened.id, digest=opened.digest(counts), originals=originals)
        return self._datasets[key]


class Folder:
    """An open directory: its files are found through it, so that no link on the way can lead elsewhere."""

    def __init__(self, path, inside=None):
        """Open ``path`` (of the ``Folder`` ``inside``, where given).

        Raises:
            Rejected: E_FILE_MISSING when there is nothing, E_FILE_KIND for a link or anything but a folder.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._handle = os.open(path, flags, dir_fd=None if inside is None else inside._handle)
        except OSError as error:
            missing = error.errno == errno.ENOENT
            code, found = ("E_FILE_MISSING", "nothing") if missing else ("E_FILE_KIND", os.strerror(error.errno))
            raise Rejected(code, Path(path).name, "a folder, not a link", found) from None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        os.close(self._handle)

    def names(self):
        """The names in the folder."""
        return set(os.listdir(self._handle))

    def mode(self, name):
        """The ``st_mode`` of an entry, which is not opened and not followed; None where there is none."""
        try:
            return os.lstat(name, dir_fd=self._handle).st_mode
        except FileNotFoundError:
            return None

    def read(self, name, max_bytes):
        """The bytes of a file of the folder; raises ``Rejected`` as ``files.read_once`` does."""
        return files.read_once(Path(name), max_bytes=max_bytes, folder=self._handle)

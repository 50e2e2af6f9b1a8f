"""What a run asks for: a name or a path in, the folder of a prepared dataset out.

A prepared copy is used again only when it is really the same thing: its pixels are digested again, and either its
source has the same fingerprint (every file by name, size and content) or decoding gives the same dataset digest.

Some names are earned. ``cifar10`` belongs to what torchvision's md5 check passed, ``patches`` to the patches that
this package cuts; pixels from elsewhere may carry the name only when their digest equals that of such a copy in the
same data root.
"""

import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vqkit.data import cifar10, folder, parquet, patches
from vqkit.data.source import describe
from vqkit.errors import Refused, Rejected, UsageError
from vqkit.formats import dataset
from vqkit.formats.schema import NAME

EARNED = {"cifar10": cifar10.KIND, "patches": "patches/1"}
_LAYOUTS = "a prepared dataset, CIFAR-10's archive or batches, train/test Parquet files, or a folder train/ of images"


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A prepared dataset. ``digest`` covers every sample; ``notice``, unless empty, must be shown to the user."""

    folder: Path
    id: str
    digest: str
    train: int
    evaluation: int
    notice: str = ""


def resolve(spec, root, *, name=None, holdout=0, download=False, progress=None):
    """The folder of a canonical dataset, prepared now if need be.

    Args:
        spec: ``cifar10``, ``patches``, ``auto`` (cifar10 if it can be had, else patches), a path to a prepared dataset
            or to a source, or the id of a dataset prepared in ``root``. A path that exists goes before an id.
        root: the data root; datasets are prepared into root/<id>, and raw copies of CIFAR-10 are looked for there.
        name: the id that a source is to carry; None takes the name of its folder.
        holdout: for a source without a test split, how many of the last training images become the evaluation split.
        download: whether CIFAR-10 may be fetched.
        progress: None or ``progress(what, done, total)``; total is None where it is not known.

    Raises:
        Rejected: E_DATA_… for a source that is not valid; E_DATASET_FILE for a damaged copy.
        Refused: E_DATASET_NAME for a name that is not earned, E_DATASET_CHANGED when root has another dataset under
            this name.
        UsageError: a name that is not plain; a name or a holdout where none can be given.
    """
    root = Path(root)
    if spec in ("auto", *EARNED):
        if name not in (None, spec) or holdout:
            raise UsageError("E_USAGE", spec, "no other name and no holdout", f"{name or spec}, holdout {holdout}")
        return _auto(root, download, progress) if spec == "auto" else _named(spec, root, download, progress)
    path = _locate(str(spec), root)
    if not _is_prepared(path):
        source, default = _open(path)
        return _prepare(source, root, name or default, holdout, progress)
    if name is not None or holdout:
        raise UsageError("E_USAGE", str(path), "no name and no holdout for a prepared dataset", "one of them")
    return _open_prepared(path, root)


def show(spec, root):
    """The ``Resolved`` of a prepared dataset, by id or by path; digested again, never prepared now."""
    root = Path(root)
    known = re.fullmatch(NAME["pattern"], spec) and _is_prepared(root / spec)
    return _open_prepared(root / spec if known else Path(spec), root)


def list_prepared(root):
    """The cards (dataset.json) of all datasets prepared in ``root``, sorted by id; nothing is digested."""
    root = Path(root)
    folders = [place for place in root.iterdir() if _is_prepared(place)] if root.is_dir() else []
    return [dataset.read_card(place) for place in sorted(folders) if place.name[0] != "."]


def _auto(root, download, progress):
    try:
        return _named("cifar10", root, download, progress)
    except Rejected as error:
        if not set(error.codes) <= {"E_DATA_SOURCE", "E_DATA_DOWNLOAD"}:
            raise
        reason = error.problems[0].found
    found = _named("patches", root, download, progress)
    notice = (
        "NOTICE: this is not CIFAR-10. It could not be had "
        f"({reason}), so the dataset is `patches`: 32×32 patches of five photographs from scikit-image. "
        "Every digest and report will name it. To use CIFAR-10: python -m runner data prepare cifar10"
    )
    return Resolved(**{**vars(found), "notice": notice})


def _named(spec, root, download, progress):
    """``cifar10`` or ``patches``: a prepared copy, else a raw one, else (where allowed) a download."""
    if spec == "patches":
        return _prepare(patches.read(), root, spec, 0, progress)
    if _is_prepared(root / spec):
        return _open_prepared(root / spec, root)
    copy = cifar10.find(root)
    if copy is not None:
        return _prepare(cifar10.read(copy), root, spec, 0, progress)
    if not download:
        hint = f"a prepared or raw copy ({cifar10.ARCHIVE} or {cifar10.BATCHES}/); to fetch it: data prepare cifar10"
        raise Rejected("E_DATA_SOURCE", str(root), hint, "no copy of CIFAR-10")
    with _scratch(root) as scratch:
        return _prepare(cifar10.read(cifar10.download(scratch, progress)), root, spec, 0, progress)


@contextlib.contextmanager
def _scratch(root):
    """A temporary folder in ``root``; afterwards both are as before, but for what was prepared."""
    fresh = not root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".download.", dir=root))
    except OSError as error:
        raise Rejected("E_FILE_WRITE", str(root), "a folder that can be written to", str(error)) from None
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if fresh:
            with contextlib.suppress(OSError):
                root.rmdir()


def _open(path):
    """The source at a path and the name that it carries by default."""
    if path.is_file():
        if not path.name.endswith((".tar.gz", ".tgz")):
            raise Rejected("E_DATA_SOURCE", str(path), f"one of: {_LAYOUTS}", describe(*_start(path)))
        copy = path
    else:
        copy = cifar10.find(path)
        tables = parquet.find(path)
        kinds = [copy is not None, bool(tables), folder.is_source(path)]
        if sum(kinds) != 1:
            listing = ", ".join(sorted(place.name for place in path.iterdir())[:8]) or "an empty folder"
            raise Rejected("E_DATA_SOURCE", str(path), f"one of: {_LAYOUTS}", listing)
        if tables:
            return parquet.read(path), path.resolve().name
        if copy is None:
            return folder.read(path), path.resolve().name
    return cifar10.read(copy), "cifar10"


def _start(path):
    """The first bytes of a file and its size."""
    with open(path, "rb") as file:
        return file.read(512), os.fstat(file.fileno()).st_size


def _prepare(source, root, name, holdout, progress):
    """Decode a source into root/name, unless the very same thing lies there."""
    _check_name(name, source, root)
    _check_splits(source, name, holdout)
    text = source.text + (f" holdout {holdout}" if holdout else "")
    target = root / name
    if _is_prepared(target) and dataset.read_card(target)["source"] == text:
        return _open_prepared(target, root)
    decoded = source.decode(progress)
    if holdout:
        decoded = _hold_out(decoded["train"], name, holdout)
    fresh = dataset.Dataset(
        id=name,
        source=text,
        images={split: images for split, (images, _) in decoded.items()},
        labels={split: labels for split, (_, labels) in decoded.items()},
    )
    if not _is_prepared(target):
        with contextlib.suppress(_Taken):
            return _write(target, fresh)
    found, digest = _open_prepared(target, root), fresh.digest()
    if found.digest != digest:
        code = "E_DATASET_CHANGED" if _is_by_right(name, text) else "E_DATASET_NAME"
        expected = f"the dataset that is prepared there, {found.digest} (or another --name)"
        raise Refused(code, str(target), expected, f"pixels or labels with {digest}")
    return found


class _Taken(Exception):
    """Another process prepared a dataset under this name while this one was decoding."""


def _write(target, fresh):
    try:
        dataset.write(target, fresh)
    except Rejected as error:
        if error.codes == ("E_FILE_EXISTS",) and _is_prepared(target):
            raise _Taken from None
        raise
    return _resolved(target, fresh, fresh.digest())


def _check_name(name, source, root):
    """The name is plain, and earned where it has to be: by the kind of source, or else by a copy to compare with."""
    if not re.fullmatch(NAME["pattern"], name) or name == "auto":
        expected = "a-z, 0-9, dot, underscore or hyphen, 64 at most, not `auto` (give one with --name)"
        raise UsageError("E_USAGE", "name", expected, repr(name)[:80])
    if not _is_by_right(name, source.text) and not _is_prepared(root / name):
        raise Refused("E_DATASET_NAME", name, _earned(name, root), "another source and no such copy (use --name)")


def _check_splits(source, name, holdout):
    if "train" not in source.splits:
        raise Rejected("E_DATA_SOURCE", name, "a training split", ", ".join(source.splits) or "none")
    if "evaluation" in source.splits and holdout:
        raise UsageError("E_USAGE", "holdout", "a source without a test split", f"{name}, which has one")
    if "evaluation" not in source.splits and holdout < 1:
        raise Rejected("E_DATA_SOURCE", name, "a test split (or --holdout N: the last N images of train)", "none")


def _hold_out(train, name, count):
    images, labels = train
    if count >= len(images):
        raise Rejected("E_DATA_EMPTY", name, f"more than the {count} images to hold out", f"{len(images)}")
    return {
        "train": (images[:-count], labels[:-count]),
        "evaluation": (images[-count:], labels[-count:]),
    }


def _open_prepared(place, root):
    """A prepared dataset whose pixels have the digest that its card says, and whose name is earned."""
    card = dataset.read_card(place)
    opened = dataset.open_dataset(place)
    digest = opened.digest()
    if digest != card["digest"]:
        raise Rejected("E_DATASET_FILE", str(place), card["digest"], digest)
    if not _is_by_right(opened.id, opened.source):
        original = root / opened.id
        if place.resolve() == original.resolve() or not _is_prepared(original):
            raise Refused("E_DATASET_NAME", str(place), _earned(opened.id, root), f"a copy from {opened.source}")
        if _open_prepared(original, root).digest != digest:
            raise Refused("E_DATASET_NAME", str(place), _earned(opened.id, root), f"pixels with {digest}")
    if place.parent.resolve() == root.resolve() and place.name != opened.id:
        raise Refused("E_DATASET_NAME", str(place), f"a dataset that is named {place.name}", opened.id)
    return _resolved(place, opened, digest)


def _resolved(place, opened, digest):
    return Resolved(
        folder=place,
        id=opened.id,
        digest=digest,
        train=len(opened.images["train"]),
        evaluation=len(opened.images["evaluation"]),
    )


def _is_by_right(name, text):
    """Whether a source of this text may carry the name without a copy to compare with."""
    return name not in EARNED or text.startswith(f"{EARNED[name]} ")


def _earned(name, root):
    return f"what {EARNED[name]} gives, or the same pixels as a copy from there in {root}"


def _is_prepared(place):
    return os.path.isfile(place / dataset.CARD)


def _locate(spec, root):
    """The path that ``spec`` stands for: one that exists, or else the dataset of that id in ``root``."""
    try:
        Path(spec).stat()
        return Path(spec)
    except (OSError, ValueError) as error:
        if re.fullmatch(NAME["pattern"], spec) and _is_prepared(root / spec):
            return root / spec
        reason = getattr(error, "strerror", None) or str(error)
        known = ", ".join(card["id"] for card in list_prepared(root)) or "none"
        expected = f"cifar10, patches, auto, a path, or a dataset prepared in {root} ({known})"
        raise Rejected("E_DATA_SOURCE", spec, expected, reason) from None

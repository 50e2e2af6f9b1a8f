"""A folder of PNG or JPEG files, in one of two layouts for each split; both have exactly one order.

    FOLDER/train/LABEL/*.png    a folder for each label. Images are ordered by file name, whatever their label, and
                                equal file names by label: number the files (00000.png, 00001.png, …) to fix an order.
                                Labels that are all digits are taken as numbers; else the sorted names of the training
                                split are numbered from 0.
    FOLDER/train/labels.csv     header ``file,label``, a row for each image in the order wanted; label is an integer
                                from 0 to 255, file a path inside train/.
    FOLDER/test/…               the evaluation split, if there is one

Hidden files are not looked at; every other file must be an image.
"""

import csv
import io
from functools import partial
from pathlib import PurePosixPath

from vqkit.data import pixels
from vqkit.data.source import Source, bounded, entries, fingerprint, read_files
from vqkit.errors import Problem, Rejected, raise_all

_SPLITS = {"train": "train", "evaluation": "test"}
_LABELS = "labels.csv"


def is_source(folder):
    """Whether a folder has this layout."""
    return entries(folder).get("train") is True


def read(folder):
    """The source in a folder.

    Raises:
        Rejected: E_DATA_SOURCE for another layout, E_DATA_FILE for files that can't be read, E_DATA_LABEL for a
            damaged labels.csv.
    """
    known = entries(folder)
    contents, rows, classes = {}, {}, None
    for split, name in _SPLITS.items():
        if not known.get(name):
            continue
        place = folder / name
        if _LABELS in entries(place):
            rows[split], files = _read_table(place, name)
        else:
            rows[split], files, classes = _read_classes(place, name, classes)
        contents |= files
    return Source(text=fingerprint("folder", contents), splits=tuple(rows), decode=partial(_decode, rows, contents))


def _decode(rows, contents, progress):
    decoded, problems = {}, []
    for split, listing in rows.items():
        files = [(name, contents[name]) for name, _ in listing]
        decoded[split] = (
            pixels.decode(files, split, problems, progress),
            pixels.labels(listing, split, problems),
        )
    raise_all(Rejected, problems)
    return decoded


def _read_classes(place, prefix, classes):
    """A folder for each label: [(name, label)] in order, name → bytes, and the numbering of the labels."""
    names, problems = [], []
    for name, is_folder in entries(place).items():
        if is_folder:
            names.append(name)
        else:
            problems.append(_problem("E_DATA_SOURCE", f"{prefix}/{name}", f"folders of labels, or {_LABELS}", "a file"))
    classes = classes or _numbering(names, prefix, problems)
    listing, paths = [], {}
    for label in names:
        if label not in classes:
            known = ", ".join(list(classes)[:20])
            problems.append(_problem("E_DATA_LABEL", f"{prefix}/{label}", f"a label of train: {known}", label))
        for name, is_folder in entries(place / label).items():
            path = f"{prefix}/{label}/{name}"
            if is_folder:
                problems.append(_problem("E_DATA_SOURCE", path, "an image", "a folder"))
            else:
                paths[path] = place / label / name
                listing.append((name, label, path))
    raise_all(Rejected, bounded(problems, prefix))
    return [(path, classes[label]) for _, label, path in sorted(listing)], read_files(paths), classes


def _numbering(names, prefix, problems):
    """label name → number: digits as they stand, else the position among the sorted names."""
    if names and all(name.isascii() and name.isdigit() for name in names):
        numbers = {name: int(name[:9]) for name in names}
    else:
        numbers = {name: number for number, name in enumerate(names)}
    if len(set(numbers.values())) < len(numbers):
        problems.append(_problem("E_DATA_LABEL", prefix, "a folder for each number", "a number twice"))
    return numbers


def _read_table(place, prefix):
    """labels.csv: [(name, label)] in its order, and name → bytes (labels.csv included)."""
    table = f"{prefix}/{_LABELS}"
    data = read_files({table: place / _LABELS})
    try:
        rows = list(csv.reader(io.StringIO(data[table].decode("utf-8")), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Rejected("E_DATA_LABEL", table, "a CSV table in UTF-8", str(error)) from None
    if not rows or rows[0] != ["file", "label"]:
        raise Rejected("E_DATA_LABEL", table, "the header file,label", repr(rows[0] if rows else "")[:80])
    listing, paths, problems = [], {}, []
    for number, row in enumerate(rows[1:], start=2):
        where = f"{table} line {number}"
        if len(row) != 2:
            problems.append(_problem("E_DATA_LABEL", where, "file,label", repr(row)[:80]))
            continue
        path = PurePosixPath(row[0])
        name = f"{prefix}/{row[0]}"
        if not row[0] or path.is_absolute() or ".." in path.parts or str(path) != row[0] or "\0" in row[0]:
            problems.append(_problem("E_DATA_LABEL", where, f"a plain path inside {prefix}/", repr(row[0])[:80]))
        elif name in paths:
            problems.append(_problem("E_DATA_LABEL", where, "each file once", repr(row[0])[:80]))
        else:
            paths[name] = place / row[0]
        listing.append((name, int(row[1]) if row[1].isascii() and row[1].isdigit() and len(row[1]) < 9 else row[1]))
    unlisted = sorted(_files(place, prefix) - paths.keys())
    problems += [_problem("E_DATA_LABEL", name, f"a row in {table}", "none") for name in unlisted]
    raise_all(Rejected, bounded(problems, table))
    return listing, data | read_files(paths)


def _files(place, prefix):
    """Every file in ``place`` and in its folders, but for labels.csv, as names."""
    names = set()
    for name, is_folder in entries(place).items():
        if is_folder:
            names |= {f"{prefix}/{name}/{inner}" for inner, deeper in entries(place / name).items() if not deeper}
        elif name != _LABELS:
            names.add(f"{prefix}/{name}")
    return names


def _problem(code, where, expected, found):
    return Problem(code=code, where=where, expected=expected, found=found)

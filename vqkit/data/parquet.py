"""A Parquet pair in the layout of the Hugging Face hub; the order of rows is the order of images.

    FOLDER[/data | /plain_text]/train.parquet               test.parquet
    FOLDER[/data | /plain_text]/train-00000-of-00001.parquet test-00000-of-00001.parquet

Columns: ``img`` or ``image``, a struct with ``bytes`` (PNG or JPEG); ``label``, integers from 0 to 255. Other columns
are not read. Without a test file there is no evaluation split.
"""

import re

from vqkit.data import pixels
from vqkit.data.source import Source, describe, entries, fingerprint, read_files
from vqkit.errors import Problem, Rejected, raise_all

_SUBFOLDERS = ("data", "plain_text")
_SPLITS = {"train": "train", "evaluation": "test"}
_IMAGE_COLUMNS = ("img", "image")
_MAX_ROWS = 1 << 20


def find(folder):
    """The Parquet files of a folder as split → name → path, in shard order; {} when it is no such folder."""
    known = entries(folder)
    places = [folder, *(folder / name for name in _SUBFOLDERS if known.get(name))]
    found = {}
    for place in places:
        names = [name for name, is_folder in entries(place).items() if not is_folder]
        for split, stem in _SPLITS.items():
            mine = [name for name in names if re.fullmatch(rf"{stem}(-\d+-of-\d+)?\.parquet", name)]
            if not mine:
                continue
            if split in found:
                raise Rejected("E_DATA_SOURCE", str(folder), f"one place with {stem} files", "several")
            _require_all_shards(mine, stem, place)
            found[split] = {str((place / name).relative_to(folder)): place / name for name in mine}
    return found


def read(folder):
    """The source in a folder that ``find`` knows; raises ``Rejected`` E_DATA_FILE for files that can't be read."""
    splits = find(folder)
    contents = {split: read_files(paths) for split, paths in splits.items()}
    every = {name: data for files in contents.values() for name, data in files.items()}
    return Source(
        text=fingerprint("parquet", every), splits=tuple(contents), decode=lambda progress: _decode(contents, progress)
    )


def _require_all_shards(names, stem, place):
    """Either one plain file, or every shard that the names announce."""
    if names == [f"{stem}.parquet"]:
        return
    total = re.search(r"-of-(\d+)", names[-1])
    expected = [f"{stem}-{i:05d}-of-{total[1]}.parquet" for i in range(min(int(total[1]), 4096))] if total else []
    if names != expected:
        wanted = f"{stem}.parquet alone, or all shards from {stem}-00000-of-N.parquet on"
        raise Rejected("E_DATA_SOURCE", str(place), wanted, ", ".join(names[:8]))


def _decode(contents, progress):
    decoded, problems = {}, []
    for split, files in contents.items():
        images, values = [], []
        for name, data in files.items():
            rows, labels = _table(name, data, problems)
            images += rows
            values += labels
        if problems and not images:
            continue
        decoded[split] = (
            pixels.decode(images, split, problems, progress),
            pixels.labels(values, split, problems),
        )
    raise_all(Rejected, problems)
    return decoded


def _table(name, data, problems):
    """The rows of one file: [(place, image bytes)], [(place, label)]; faults of the table go to ``problems``."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        image_column = _check_columns(name, file.schema_arrow, problems)
        if image_column is None:
            return [], []
        if file.metadata.num_rows > _MAX_ROWS:
            found = f"{file.metadata.num_rows}"
            problems.append(Problem(code="E_DATA_FILE", where=name, expected=f"at most {_MAX_ROWS} rows", found=found))
            return [], []
        table = file.read(columns=[f"{image_column}.bytes", "label"])
        images = [(row or {}).get("bytes") for row in table[image_column].to_pylist()]
        labels = table["label"].to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0][:160]
        found = f"{describe(data, len(data))}: {reason}"
        problems.append(Problem(code="E_DATA_FILE", where=name, expected="a whole Parquet file", found=found))
        return [], []
    places = [f"{name} row {row}" for row in range(len(images))]
    return list(zip(places, images, strict=True)), list(zip(places, labels, strict=True))


def _check_columns(name, schema, problems):
    """The name of the image column; None, with E_DATA_COLUMN in ``problems``, when a column does not fit."""
    import pyarrow as pa

    before = len(problems)

    def complain(expected, found):
        problems.append(Problem(code="E_DATA_COLUMN", where=name, expected=expected, found=found))

    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)[:300] or "no column"
    image = [column for column in _IMAGE_COLUMNS if column in schema.names]
    if len(image) != 1:
        complain(f"one column {' or '.join(_IMAGE_COLUMNS)}", columns)
    else:
        kind = schema.field(image[0]).type
        index = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
        if index < 0 or kind.field(index).type not in (pa.binary(), pa.large_binary()):
            complain(f"{image[0]}: struct<bytes: binary, …>", str(kind)[:200])
    if "label" not in schema.names:
        complain("a column label", columns)
    elif not pa.types.is_integer(schema.field("label").type):
        complain("label: an integer type", str(schema.field("label").type)[:200])
    return image[0] if len(problems) == before else None

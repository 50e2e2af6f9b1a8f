"""Parquet pairs and image folders: the same pixels give the same digest, and every bad input has its own error."""

import hashlib
import io
import json
import os
import re
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from conftest import REPOSITORY, contract_spec
from datafiles import noise, png, tree, write_classes, write_pair, write_parquet, write_table
from PIL import Image
from pyarrow import parquet

from vqkit.data import resolve
from vqkit.errors import Refused, Rejected, UsageError
from vqkit.formats.contract import Contract
from vqkit.formats.dataset import open_dataset


def rejected(kind, spec, root, **options):
    """The error of ``resolve``, after a look that it left the data root and the source as they were."""
    before = tree(root.parent)
    with pytest.raises(kind) as caught:
        resolve(str(spec), root, **options)
    assert tree(root.parent) == before
    return caught.value


def assert_holds(folder, splits):
    """The dataset in ``folder`` holds exactly these images and labels, in this order."""
    opened = open_dataset(folder)
    for split, (images, labels) in splits.items():
        assert np.array_equal(opened.images[split], images)
        assert opened.labels[split].tolist() == list(labels)


# One dataset by every route


def test_exact_cifar_pixels_by_parquet_and_by_png_folder_have_one_digest(shared_data, tmp_path):
    source = shared_data / "cifar10-exact-4000"
    by_parquet = resolve(str(source), tmp_path / "data", holdout=512)
    table = parquet.read_table(source / "train.parquet").to_pylist()
    for row, entry in enumerate(table):
        folder = tmp_path / "png" / "train" / str(entry["label"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{row:05d}.png").write_bytes(entry["img"]["bytes"])
    by_folder = resolve(str(tmp_path / "png"), tmp_path / "data", holdout=512)
    assert by_folder.digest == by_parquet.digest
    assert (by_parquet.train, by_parquet.evaluation) == (3488, 512)
    opened = open_dataset(by_parquet.folder)
    assert opened.images["train"][0, 0, :3].tolist() == [[59, 62, 63], [43, 46, 45], [50, 48, 43]]
    assert opened.labels["train"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert opened.labels["evaluation"].tolist() == [entry["label"] for entry in table[-512:]]


def test_every_layout_of_the_same_images_has_one_digest(tmp_path):
    splits = write_pair(tmp_path / "pair")
    for stem, (images, labels) in zip(("train", "test"), splits.values(), strict=True):
        files = [png(image) for image in images]
        write_parquet(tmp_path / "one" / "data" / f"{stem}-00000-of-00001.parquet", files, labels, column="image")
        middle = len(files) // 2
        for shard, rows in enumerate((slice(None, middle), slice(middle, None))):
            name = f"{stem}-0000{shard}-of-00002.parquet"
            write_parquet(tmp_path / "two" / "plain_text" / name, files[rows], labels[rows])
        write_classes(tmp_path / "classes" / stem, images, labels)
        write_table(tmp_path / "table" / stem, images, labels)
    names = ("pair", "one", "two", "classes", "table")
    found = {name: resolve(str(tmp_path / name), tmp_path / "data") for name in names}
    for name in names:
        assert_holds(found[name].folder, splits)
    assert len({entry.digest for entry in found.values()}) == 1
    assert [entry.id for entry in found.values()] == list(names)


def test_digest_binds_order_labels_and_split_sizes(tmp_path):
    images, labels = noise(8)
    variants = {
        "base": (images, labels),
        "order": (images[::-1], labels[::-1]),
        "label": (images, [*labels[:-1], labels[-1] + 1]),
    }
    digests = set()
    for name, (pixels, values) in variants.items():
        write_parquet(tmp_path / name / "train.parquet", [png(image) for image in pixels], values)
        digests.add(resolve(str(tmp_path / name), tmp_path / "data", holdout=2).digest)
    digests.add(resolve(str(tmp_path / "base"), tmp_path / "data", holdout=3, name="other").digest)
    assert len(digests) == 4


def test_word_labels_are_numbered_by_sorted_name_and_order_is_by_file_name(tmp_path):
    images, _ = noise(4)
    words = ["dog", "cat", "dog", "ant"]
    write_classes(tmp_path / "pets" / "train", images, words)
    write_classes(tmp_path / "pets" / "test", images[:1], ["dog"])
    found = resolve(str(tmp_path / "pets"), tmp_path / "data")
    assert_holds(found.folder, {"train": (images, [2, 1, 2, 0]), "evaluation": (images[:1], [2])})


def test_jpeg_is_decoded_like_pillow_does(shared_data, tmp_path):
    rows = parquet.read_table(shared_data / "cifar10-jpeg" / "test.parquet").slice(0, 40).to_pylist()
    files = [row["img"]["bytes"] for row in rows]
    write_parquet(tmp_path / "jpeg" / "train.parquet", files, [row["label"] for row in rows])
    found = resolve(str(tmp_path / "jpeg"), tmp_path / "data", holdout=8)
    with Image.open(io.BytesIO(files[39])) as image:
        expected = np.array(image.convert("RGB"))
    assert np.array_equal(open_dataset(found.folder).images["evaluation"][-1], expected)


# Prepared copies


def test_prepared_dataset_is_found_by_path_and_by_id(tmp_path):
    write_pair(tmp_path / "pair")
    found = resolve(str(tmp_path / "pair"), tmp_path / "data", name="mine")
    assert found.folder == tmp_path / "data" / "mine"
    assert resolve("mine", tmp_path / "data") == found
    assert resolve(str(found.folder), tmp_path / "elsewhere").digest == found.digest
    assert not (tmp_path / "elsewhere").exists()
    rejected(UsageError, found.folder, tmp_path / "data", name="other")


def test_unchanged_source_is_not_decoded_again(tmp_path):
    write_pair(tmp_path / "pair")
    first = resolve(str(tmp_path / "pair"), tmp_path / "data")
    seen = []
    assert resolve(str(tmp_path / "pair"), tmp_path / "data", progress=lambda *event: seen.append(event)) == first
    assert seen == []


def test_same_pixels_in_other_files_are_the_same_dataset(tmp_path):
    splits = write_pair(tmp_path / "pair")
    first = resolve(str(tmp_path / "pair"), tmp_path / "data")
    images, labels = splits["train"]
    files = [png(image, compress_level=1) for image in images]
    write_parquet(tmp_path / "pair" / "train.parquet", files, labels)
    assert resolve(str(tmp_path / "pair"), tmp_path / "data") == first


def test_changed_source_under_the_same_name_names_both_digests(tmp_path):
    splits = write_pair(tmp_path / "pair")
    first = resolve(str(tmp_path / "pair"), tmp_path / "data")
    images, labels = splits["train"]
    images[3, 0, 0, 0] ^= 1
    write_parquet(tmp_path / "pair" / "train.parquet", [png(image) for image in images], labels)
    error = rejected(Refused, tmp_path / "pair", tmp_path / "data")
    assert error.codes == ("E_DATASET_CHANGED",)
    fresh = resolve(str(tmp_path / "pair"), tmp_path / "data", name="fresh")
    assert first.digest in str(error)
    assert fresh.digest in str(error)


def test_source_folder_goes_before_a_prepared_dataset_of_that_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pair(tmp_path / "pair")
    first = resolve("pair", tmp_path / "data")
    write_pair(tmp_path / "pair", train=13)
    assert rejected(Refused, "pair", tmp_path / "data").codes == ("E_DATASET_CHANGED",)
    assert resolve(str(first.folder), tmp_path / "data") == first


def test_damaged_copy_is_not_used(tmp_path):
    write_pair(tmp_path / "pair")
    found = resolve(str(tmp_path / "pair"), tmp_path / "data")
    path = found.folder / "images.safetensors"
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert rejected(Rejected, "pair", tmp_path / "data").codes == ("E_DATASET_FILE",)
    path.write_bytes(data[:-1])
    assert rejected(Rejected, "pair", tmp_path / "data").codes == ("E_DATASET_FILE",)


def test_another_process_that_was_faster_is_joined(tmp_path, monkeypatch):
    from vqkit.formats import dataset

    write_pair(tmp_path / "pair")
    real = dataset.write

    def late(folder, fresh):
        real(folder, fresh)
        real(folder, fresh)

    monkeypatch.setattr(dataset, "write", late)
    found = resolve(str(tmp_path / "pair"), tmp_path / "data")
    assert open_dataset(found.folder).digest() == found.digest
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["pair"]


def test_root_that_can_not_be_written(tmp_path):
    write_pair(tmp_path / "pair")
    (tmp_path / "data").write_text("a file")
    assert rejected(Rejected, tmp_path / "pair", tmp_path / "data").codes == ("E_FILE_WRITE",)


# Names and splits


@pytest.mark.parametrize("name", ["Mine", "a b", "", "../up", "x" * 65, "auto"])
def test_name_that_is_not_plain(tmp_path, name):
    write_pair(tmp_path / "My Folder")
    options = {"name": name} if name else {}
    assert rejected(UsageError, tmp_path / "My Folder", tmp_path / "data", **options).codes == ("E_USAGE",)


def test_the_layouts_that_readme_shows(tmp_path):
    """Each path of the layout in the README, with images in it: what is read, in which order, what is held out."""
    readme = (REPOSITORY / "README.md").read_text()
    classes, table, test = re.findall(r"^FOLDER/(\S+) ", readme, re.MULTILINE)
    images, labels = noise(6)
    for row, name in enumerate(("dog", "cat", "dog", "cat", "ant", "dog")):
        path = tmp_path / "one" / classes.replace("LABEL", name).replace("00000", f"{row:05d}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(images[row]))
    (path.parent / ".hidden").write_text("not looked at")
    found = resolve(str(tmp_path / "one"), tmp_path / "data", holdout=2)
    assert_holds(found.folder, {"train": (images[:4], [2, 1, 2, 1]), "evaluation": (images[4:], [0, 2])})
    write_table((tmp_path / "two" / table).parent, images, labels)
    write_classes(tmp_path / "two" / test.removesuffix("/…"), images[:2], [7, 8])
    found = resolve(str(tmp_path / "two"), tmp_path / "data")
    assert_holds(found.folder, {"train": (images, labels), "evaluation": (images[:2], [7, 8])})
    for contract in (Contract(contract_spec(name)) for name in ("quick-v1", "cifar10-v1")):
        assert f"`{contract.name}` {contract.train_count:,} and {contract.evaluation_count:,}" in readme


def test_missing_test_split_suggests_holdout(tmp_path):
    images, labels = noise(6)
    write_classes(tmp_path / "one" / "train", images, labels)
    error = rejected(Rejected, tmp_path / "one", tmp_path / "data")
    assert error.codes == ("E_DATA_SOURCE",)
    assert "--holdout" in str(error)
    assert rejected(Rejected, tmp_path / "one", tmp_path / "data", holdout=6).codes == ("E_DATA_EMPTY",)
    found = resolve(str(tmp_path / "one"), tmp_path / "data", holdout=2)
    assert_holds(found.folder, {"train": (images[:4], labels[:4]), "evaluation": (images[4:], labels[4:])})
    assert rejected(Refused, tmp_path / "one", tmp_path / "data", holdout=1).codes == ("E_DATASET_CHANGED",)


def test_holdout_beside_a_test_split_is_refused(tmp_path):
    write_pair(tmp_path / "pair")
    assert rejected(UsageError, tmp_path / "pair", tmp_path / "data", holdout=2).codes == ("E_USAGE",)


# Bad images


def _png_by_hand(side, depth):
    """A PNG that Pillow can't write: RGB with any bit depth, with the pixel data of 32×32 pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, depth, 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(32 * 3 * depth // 8) for _ in range(32))
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _jpeg(mode="RGB"):
    buffer = io.BytesIO()
    Image.fromarray(noise(1)[0][0]).convert(mode).save(buffer, "JPEG")
    return buffer.getvalue()


_RGB = Image.fromarray(noise(1)[0][0])
BAD_IMAGES = {
    "greyscale": (png(_RGB.convert("L")), "a greyscale image"),
    "palette": (png(_RGB.convert("P")), "a palette image"),
    "alpha": (png(_RGB.convert("RGBA")), "a RGBA image"),
    "one bit": (png(_RGB.convert("1")), "a black and white image"),
    "cmyk": (_jpeg("CMYK"), "a CMYK image"),
    "grey jpeg": (_jpeg("L"), "a greyscale image"),
    "sixteen bit": (_png_by_hand(32, 16), "16 bits a channel"),
    "size": (png(_RGB.resize((32, 31))), "32×31 pixels"),
    "animation": (png(_RGB, save_all=True, append_images=[_RGB.rotate(90)]), "an animation of 2 frames"),
    "cut png": (png(_RGB)[:-40], "cut off"),
    "png without end": (png(_RGB)[:-12], "cut off"),
    "cut jpeg": (_jpeg()[:-2], "damaged"),
    "html": (b"<!DOCTYPE html><title>503</title>", "an HTML page of 33 bytes"),
    "gif": (b"GIF89a" + bytes(20), "26 bytes that begin with b'GIF89a"),
    "empty": (b"", "no bytes"),
    "bomb": (_png_by_hand(60000, 8), "damaged"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
@pytest.mark.parametrize("route", ["parquet", "folder"])
def test_bad_image(tmp_path, case, route):
    data, found = BAD_IMAGES[case]
    files = [png(image) for image in noise(4)[0]]
    files[2] = data
    if route == "parquet":
        write_parquet(tmp_path / "bad" / "train.parquet", files, [0, 1, 2, 3])
        where = "train.parquet row 2"
    else:
        (tmp_path / "bad" / "train" / "7").mkdir(parents=True)
        for row, content in enumerate(files):
            (tmp_path / "bad" / "train" / "7" / f"{row}.png").write_bytes(content)
        where = "train/7/2.png"
    error = rejected(Rejected, tmp_path / "bad", tmp_path / "data", holdout=1)
    assert error.codes == ("E_DATA_IMAGE",)
    assert error.problems[0].where == where
    assert found in error.problems[0].found


@pytest.mark.parametrize("cut", [8, 100, 700, 1500, 2500])
def test_png_cut_anywhere(tmp_path, cut):
    write_parquet(tmp_path / "bad" / "train.parquet", [png(noise(1)[0][0])[:cut]] * 2, [0, 1])
    assert set(rejected(Rejected, tmp_path / "bad", tmp_path / "data", holdout=1).codes) == {"E_DATA_IMAGE"}


def test_all_bad_images_and_labels_of_both_splits_are_reported_bounded(tmp_path):
    good = png(noise(1)[0][0])
    write_parquet(tmp_path / "bad" / "train.parquet", [b"no"] * 50 + [good], [*[300] * 3, *[1] * 48])
    write_parquet(tmp_path / "bad" / "test.parquet", [good, b""], [-1, None])
    error = rejected(Rejected, tmp_path / "bad", tmp_path / "data")
    places = [problem.where for problem in error.problems if problem.code == "E_DATA_IMAGE"]
    assert places[:20] == [f"train.parquet row {row}" for row in range(20)]
    assert places[20:] == ["train", "test.parquet row 1"]
    assert "30 more problems" in error.problems[20].found
    assert error.codes.count("E_DATA_LABEL") == 5
    assert [problem.found for problem in error.problems[-2:]] == ["-1", "None"]


# Bad tables


def _struct(**fields):
    return pa.array([dict.fromkeys(fields)], pa.struct(list(fields.items())))


@pytest.mark.parametrize(
    "columns",
    [
        {"label": pa.array([1])},
        {"img": pa.array([b"x"]), "label": pa.array([1])},
        {"img": _struct(bytes=pa.string()), "label": pa.array([1])},
        {"img": _struct(path=pa.string()), "label": pa.array([1])},
        {"img": _struct(bytes=pa.binary())},
        {"img": _struct(bytes=pa.binary()), "label": pa.array(["cat"])},
        {"img": _struct(bytes=pa.binary()), "label": pa.array([1.0])},
        {"img": _struct(bytes=pa.binary()), "label": pa.array([True])},
        {"img": _struct(bytes=pa.binary()), "image": _struct(bytes=pa.binary()), "label": pa.array([1])},
    ],
)
def test_bad_column(tmp_path, columns):
    (tmp_path / "bad").mkdir()
    parquet.write_table(pa.table(columns), tmp_path / "bad" / "train.parquet")
    assert rejected(Rejected, tmp_path / "bad", tmp_path / "data", holdout=1).codes == ("E_DATA_COLUMN",)


def test_two_bad_columns_are_reported_together(tmp_path):
    (tmp_path / "bad").mkdir()
    parquet.write_table(pa.table({"x": [1]}), tmp_path / "bad" / "train.parquet")
    assert rejected(Rejected, tmp_path / "bad", tmp_path / "data", holdout=1).codes == ("E_DATA_COLUMN",) * 2


@pytest.mark.parametrize("damage", ["cut", "html", "empty", "middle"])
def test_damaged_parquet(tmp_path, damage):
    write_pair(tmp_path / "pair")
    path = tmp_path / "pair" / "train.parquet"
    data = path.read_bytes()
    middle = data[:200] + bytes(4000) + data[4200:]
    path.write_bytes({"cut": data[:-100], "html": b"<html>404", "empty": b"", "middle": middle}[damage])
    error = rejected(Rejected, tmp_path / "pair", tmp_path / "data")
    assert set(error.codes) <= {"E_DATA_FILE", "E_DATA_IMAGE"}
    assert damage == "middle" or error.codes == ("E_DATA_FILE",)
    assert damage != "html" or "HTML page" in str(error)


def test_empty_split(tmp_path):
    write_pair(tmp_path / "pair")
    write_parquet(tmp_path / "pair" / "test.parquet", [], pa.array([], pa.int64()))
    assert rejected(Rejected, tmp_path / "pair", tmp_path / "data").codes == ("E_DATA_EMPTY",)
    write_classes(tmp_path / "classes" / "train", *noise(2))
    (tmp_path / "classes" / "test").mkdir()
    assert rejected(Rejected, tmp_path / "classes", tmp_path / "data").codes == ("E_DATA_EMPTY",)


@pytest.mark.parametrize(
    "names",
    [
        ["train-00000-of-00002.parquet"],
        ["train-00001-of-00002.parquet"],
        ["train.parquet", "train-00000-of-00001.parquet"],
        ["train.parquet", "data/train.parquet"],
        ["test.parquet"],
        ["train.parquet", "train/0/a.png"],
    ],
)
def test_unclear_layout(tmp_path, names):
    for name in names:
        (tmp_path / "odd" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "odd" / name).write_bytes(b"x")
    assert rejected(Rejected, tmp_path / "odd", tmp_path / "data", holdout=1).codes == ("E_DATA_SOURCE",)


# Bad folders


@pytest.mark.parametrize(
    ("table", "count"),
    [
        ("file,label\na.png,1\nb.png,256\n", 1),
        ("file,label\na.png,1.0\nb.png,cat\n", 2),
        ("file,label\na.png,-1\nb.png,\n", 2),
        ("file,label\na.png,1\n", 1),
        ("file,label\na.png,1\na.png,1\nb.png,1\n", 1),
        ("file,label\na.png,1\nb.png,1\n../out.png,1\n/etc/passwd,1\n./a.png,1\n", 3),
        ("file,label\na.png,1\nb.png,1,2\n", 2),
        ("label,file\n1,a.png\n1,b.png\n", 1),
        ("", 1),
        ('file,label\n"a.png,1\n', 1),
    ],
)
def test_bad_labels_table(tmp_path, table, count):
    write_table(tmp_path / "t" / "train", noise(0)[0], [])
    for name, image in zip(("a.png", "b.png"), noise(2)[0], strict=True):
        (tmp_path / "t" / "train" / name).write_bytes(png(image))
    (tmp_path / "t" / "train" / "labels.csv").write_text(table)
    assert rejected(Rejected, tmp_path / "t", tmp_path / "data", holdout=1).codes == ("E_DATA_LABEL",) * count


def test_listed_file_that_is_not_there(tmp_path):
    write_table(tmp_path / "t" / "train", *noise(2))
    (tmp_path / "t" / "train" / "99998.png").unlink()
    error = rejected(Rejected, tmp_path / "t", tmp_path / "data", holdout=1)
    assert error.codes == ("E_DATA_FILE",)
    assert error.problems[0].where == "train/99998.png"


@pytest.mark.parametrize(
    ("train", "test", "code"),
    [
        (["cat", "dog"], ["cow"], "E_DATA_LABEL"),
        (["1", "01"], ["1"], "E_DATA_LABEL"),
        (["1", "256"], ["1"], "E_DATA_LABEL"),
    ],
)
def test_bad_label_folders(tmp_path, train, test, code):
    write_classes(tmp_path / "c" / "train", noise(len(train))[0], train)
    write_classes(tmp_path / "c" / "test", noise(len(test))[0], test)
    assert rejected(Rejected, tmp_path / "c", tmp_path / "data").codes == (code,)


def test_stray_entries_of_an_image_folder(tmp_path):
    write_classes(tmp_path / "c" / "train", *noise(2))
    (tmp_path / "c" / "train" / ".DS_Store").write_bytes(b"hidden")
    resolve(str(tmp_path / "c"), tmp_path / "data", holdout=1)
    (tmp_path / "c" / "train" / "readme.txt").write_text("?")
    (tmp_path / "c" / "train" / "5").mkdir(exist_ok=True)
    (tmp_path / "c" / "train" / "5" / "deeper").mkdir()
    assert rejected(Rejected, tmp_path / "c", tmp_path / "data", holdout=1).codes == ("E_DATA_SOURCE",) * 2


def test_link_loops_pipes_and_missing_paths(tmp_path):
    write_classes(tmp_path / "c" / "train", *noise(2))
    loop = tmp_path / "c" / "train" / "0" / "loop.png"
    loop.parent.mkdir(exist_ok=True)
    loop.symlink_to("loop.png")
    assert rejected(Rejected, tmp_path / "c", tmp_path / "data", holdout=1).codes == ("E_DATA_SOURCE",)
    loop.unlink()
    os.mkfifo(loop)
    assert rejected(Rejected, tmp_path / "c", tmp_path / "data", holdout=1).codes == ("E_DATA_FILE",)
    loop.unlink()
    loop.symlink_to("..")
    assert rejected(Rejected, tmp_path / "c", tmp_path / "data", holdout=1).codes == ("E_DATA_SOURCE",)
    (tmp_path / "round").symlink_to("round")
    for spec in (tmp_path / "round", tmp_path / "absent", "absent", "x" * 300, "nul\0"):
        assert rejected(Rejected, spec, tmp_path / "data").codes == ("E_DATA_SOURCE",)


def test_links_to_files_are_followed(tmp_path):
    write_pair(tmp_path / "blobs")
    (tmp_path / "hub").mkdir()
    for name in ("train", "test"):
        (tmp_path / "hub" / f"{name}.parquet").symlink_to(tmp_path / "blobs" / f"{name}.parquet")
    linked = resolve(str(tmp_path / "hub"), tmp_path / "data")
    assert linked.digest == resolve(str(tmp_path / "blobs"), tmp_path / "data").digest


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_path(tmp_path):
    write_pair(tmp_path / "pair")
    (tmp_path / "pair" / "train.parquet").chmod(0)
    assert rejected(Rejected, tmp_path / "pair", tmp_path / "data").codes == ("E_DATA_FILE",)


def test_folder_and_file_of_no_known_layout(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "page.html").write_text("<html>")
    assert rejected(Rejected, tmp_path / "empty", tmp_path / "data").codes == ("E_DATA_SOURCE",)
    error = rejected(Rejected, tmp_path / "page.html", tmp_path / "data")
    assert error.codes == ("E_DATA_SOURCE",)
    assert "HTML page" in str(error)


# What the digest covers, worked out without this package's digest functions


def test_dataset_digest_by_hand(tmp_path):
    splits = write_pair(tmp_path / "pair")
    found = resolve(str(tmp_path / "pair"), tmp_path / "data")
    covered = {
        split: {
            "count": len(images),
            "images": hashlib.sha256(images.tobytes()).hexdigest(),
            "labels": hashlib.sha256(bytes(labels)).hexdigest(),
            "rule": "first",
        }
        for split, (images, labels) in splits.items()
    }
    body = json.dumps(covered, sort_keys=True, separators=(",", ":")).encode()
    tagged = b"vqkit.dataset/1\n" + len(body).to_bytes(8, "big") + body
    assert found.digest == "sha256:" + hashlib.sha256(tagged).hexdigest()

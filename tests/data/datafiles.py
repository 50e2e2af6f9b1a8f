"""Small image sources, written with nothing but Pillow, pyarrow, pickle and tarfile."""

import hashlib
import io
import pickle
import tarfile

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet
from torchvision.datasets import CIFAR10


def noise(count, seed=0):
    """uint8 [count, 32, 32, 3] and labels as a list."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, 10, count).tolist()


def png(pixels, **options):
    """The bytes of a PNG; ``pixels`` is an array or a Pillow image."""
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


def write_parquet(path, files, labels, column="img"):
    """A Parquet file in the hub's layout from image bytes and labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": data, "path": f"{row}.png"} for row, data in enumerate(files)]
    parquet.write_table(pa.table({column: pa.array(rows, kind), "label": pa.array(labels)}), path)


def write_pair(folder, train=12, test=5):
    """train.parquet and test.parquet; returns split → (images, labels)."""
    splits = {"train": noise(train, 1), "evaluation": noise(test, 2)}
    for stem, (images, labels) in zip(("train", "test"), splits.values(), strict=True):
        write_parquet(folder / f"{stem}.parquet", [png(image) for image in images], labels)
    return splits


def write_classes(folder, images, labels):
    """FOLDER/<label>/00000.png …"""
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        (folder / str(label) / f"{row:05d}.png").write_bytes(png(image))


def write_table(folder, images, labels):
    """FOLDER/labels.csv and images whose names sort the other way round."""
    folder.mkdir(parents=True)
    lines = ["file,label"]
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        name = f"{99999 - row}.png"
        (folder / name).write_bytes(png(image))
        lines.append(f"{name},{label}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def write_archive(folder, monkeypatch, seed=5):
    """cifar-10-python.tar.gz in CIFAR's pickle layout, 5 × 4 + 6 images; torchvision's md5s are patched to fit.

    Returns the path and split → (images, labels).
    """
    folder.mkdir(parents=True, exist_ok=True)
    splits = {"train": noise(20, seed), "evaluation": noise(6, seed + 1)}
    members = {"batches.meta": pickle.dumps({"label_names": list("abcdefghij")})}
    for number in range(5):
        rows = slice(4 * number, 4 * number + 4)
        members[f"data_batch_{number + 1}"] = _batch(splits["train"], rows)
    members["test_batch"] = _batch(splits["evaluation"], slice(None))
    path = folder / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    md5 = {name: hashlib.md5(data).hexdigest() for name, data in members.items()}
    train = [[name, md5[name]] for name in members if name.startswith("data")]
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5["batches.meta"]})
    return path, splits


def unpack(archive, folder):
    """Unpack an archive into a folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def _batch(split, rows):
    images, labels = split
    planes = images[rows].transpose(0, 3, 1, 2).reshape(-1, 3072)
    return pickle.dumps({"data": planes, "labels": labels[rows], "batch_label": "x", "filenames": []})


def tree(folder):
    """Every path below a folder with its size, hidden ones included."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in sorted(folder.rglob("*"))}

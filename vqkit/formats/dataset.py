"""The canonical dataset: one safetensors file of decoded pixels, and a small JSON that names it.

    FOLDER/images.safetensors   train_images, evaluation_images  uint8 [N, 32, 32, 3]; train_labels, … uint8 [N]
    FOLDER/dataset.json         id, where it came from, counts

Runner and evaluator both open the file by memory map and digest the pixels themselves; nobody believes dataset.json.
"""

import hashlib
import os
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError, safe_open

from vqkit.errors import Rejected, raise_all
from vqkit.formats import canonical, digests, files, schema, tensors
from vqkit.formats.contract import IMAGE
from vqkit.formats.schema import COUNT, NAME, TEXT, closed

IMAGES = "images.safetensors"
CARD = "dataset.json"
SPLITS = ("train", "evaluation")
CARD_SCHEMA = closed(
    schema={"const": "vqkit.dataset/1"},
    id=NAME,
    source=TEXT,
    train=COUNT,
    evaluation=COUNT,
    digest=schema.DIGEST,
)
_MAX_COUNT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """An opened dataset. ``images[split]`` is uint8 [N, 32, 32, 3], ``labels[split]`` uint8 [N]; both read-only."""

    id: str
    source: str
    images: dict
    labels: dict

    def digest(self, counts=None):
        """The dataset digest: pixels and labels in order, and how many of each split are selected.

        Args:
            counts: split → number of leading samples (the selection rule ``first``); None takes every sample.

        Raises:
            Rejected: E_DATA_EMPTY when a split has fewer samples than asked for.
        """
        selected = {}
        for split in SPLITS:
            images, labels = self.select(split, None if counts is None else counts[split])
            selected[split] = {
                "count": len(images),
                "images": hashlib.sha256(np.ascontiguousarray(images)).hexdigest(),
                "labels": hashlib.sha256(np.ascontiguousarray(labels)).hexdigest(),
                "rule": "first",
            }
        return digests.digest_json("dataset", selected)

    def select(self, split, count=None):
        """The first ``count`` images and labels of a split, or all of them."""
        images, labels = self.images[split], self.labels[split]
        if count is not None and count > len(images):
            raise Rejected("E_DATA_EMPTY", f"dataset {self.id} {split}", f"at least {count} images", f"{len(images)}")
        return images[:count], labels[:count]


def contract_counts(contract):
    """The selection of a contract, as ``Dataset.digest`` takes it."""
    return {"train": contract.train_count, "evaluation": contract.evaluation_count}


def write(folder, dataset):
    """Write ``dataset`` into ``folder``, which must not exist yet; all of it appears at once.

    Raises:
        Rejected: E_FILE_EXISTS when the folder is there, E_DATA_EMPTY for an empty split, E_DATA_IMAGE for any
            other shape or type, E_FILE_WRITE when the disk does not take it.
    """
    arrays, layout = {}, {}
    for split in SPLITS:
        images, labels = dataset.images[split], dataset.labels[split]
        if len(images) == 0 or len(images) > _MAX_COUNT:
            raise Rejected(
                "E_DATA_EMPTY", f"dataset {dataset.id} {split}", f"1 to {_MAX_COUNT} images", f"{len(images)}"
            )
        shape = (len(images), IMAGE, IMAGE, 3)
        if images.shape != shape or images.dtype != np.uint8 or labels.shape != shape[:1] or labels.dtype != np.uint8:
            found = f"{images.dtype} {images.shape}, labels {labels.dtype} {labels.shape}"
            raise Rejected("E_DATA_IMAGE", f"dataset {dataset.id} {split}", f"uint8 {shape} and uint8 labels", found)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
        layout |= _layout(split, len(images))
    card = {
        "schema": "vqkit.dataset/1",
        "id": dataset.id,
        "source": dataset.source,
        "train": len(dataset.images["train"]),
        "evaluation": len(dataset.images["evaluation"]),
        "digest": dataset.digest(),
    }
    raise_all(Rejected, schema.problems(card, CARD_SCHEMA, CARD))
    if folder.exists():
        raise Rejected("E_FILE_EXISTS", folder.name, "a folder that does not exist", "an existing one")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise Rejected("E_FILE_WRITE", str(folder.parent), "a folder that can be written to", str(error)) from None
    try:
        files.write_once(temporary / IMAGES, tensors.encode(arrays, layout))
        files.write_once(temporary / CARD, canonical.dumps(card))
        _publish(temporary, folder)
    except BaseException:
        for name in (IMAGES, CARD):
            (temporary / name).unlink(missing_ok=True)
        temporary.rmdir()
        raise
    files.sync_folder(folder.parent)


def read_card(folder):
    """dataset.json of a canonical dataset as plain data: what it says of itself, which nobody believes.

    Raises:
        Rejected: E_DATA_SOURCE when there is none; the codes of strict JSON and of its schema when it is damaged.
    """
    if not os.path.isfile(folder / CARD):
        raise Rejected("E_DATA_SOURCE", str(folder), f"a folder with {CARD} and {IMAGES}", "none")
    card = canonical.loads_canonical(files.read_once(folder / CARD, max_bytes=1 << 16), where=CARD)
    raise_all(Rejected, schema.problems(card, CARD_SCHEMA, CARD))
    return card


def open_dataset(folder, counts=None):
    """Open a canonical dataset.

    Args:
        folder: where ``write`` put it.
        counts: split → number of leading samples to take; None takes all. Only these are read from the memory map.

    Raises:
        Rejected: E_DATA_SOURCE when there is none, E_DATASET_FILE when it is damaged, E_DATA_EMPTY when a split has
            fewer samples than asked for.
    """
    card = read_card(folder)
    images, labels = {}, {}
    try:
        with safe_open(folder / IMAGES, framework="np") as file:
            found = {
                name: (file.get_slice(name).get_dtype(), tuple(file.get_slice(name).get_shape()))
                for name in sorted(file.keys())
            }
            expected = {
                name: ("U8", shape) for split in SPLITS for name, (_, shape) in _layout(split, card[split]).items()
            }
            if found != expected:
                raise Rejected("E_DATASET_FILE", IMAGES, str(expected), str(found))
            for split in SPLITS:
                count = card[split] if counts is None else counts[split]
                if count > card[split]:
                    where = f"dataset {card['id']} {split}"
                    raise Rejected("E_DATA_EMPTY", where, f"at least {count} images", f"{card[split]}")
                images[split] = file.get_slice(f"{split}_images")[:count]
                labels[split] = file.get_slice(f"{split}_labels")[:count]
    except (OSError, SafetensorError) as error:
        raise Rejected("E_DATASET_FILE", IMAGES, "a readable safetensors file", str(error)[:200]) from None
    return Dataset(id=card["id"], source=card["source"], images=images, labels=labels)


def _publish(temporary, folder):
    """Give the finished folder its name; another process may have taken it in the meantime."""
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if folder.exists():
            raise Rejected("E_FILE_EXISTS", folder.name, "a folder that does not exist", "an existing one") from None
        raise Rejected("E_FILE_WRITE", folder.name, "the finished folder under this name", str(error)) from None


def _layout(split, count):
    return {
        f"{split}_images": ("uint8", (count, IMAGE, IMAGE, 3)),
        f"{split}_labels": ("uint8", (count,)),
    }

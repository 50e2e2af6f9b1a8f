"""32×32 patches of five freely licensed photographs that lie in scikit-image's wheel: the default that is always there.

Training and evaluation patches come from different photographs. A photograph is shrunk 1, 2, 3 and 4 times by exact
integer averages over blocks, cut on a grid of 8 pixels, and patches of nearly one colour are left out. Which patches
are taken, and in which order, follows from the sha256 of each patch's place, so that it depends on no library's random
numbers; the photographs of a split take turns, so that any prefix is a fair mix. The label is the photograph's number.
"""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from vqkit.data import pixels
from vqkit.data.source import Source, fingerprint, read_files
from vqkit.errors import Rejected
from vqkit.formats.contract import IMAGE

PHOTOGRAPHS = {
    "train": ("astronaut.png", "coffee.png", "hubble_deep_field.jpg"),
    "evaluation": ("chelsea.png", "rocket.jpg"),
}
COUNTS = {"train": 8192, "evaluation": 1024}
SCALES = (1, 2, 3, 4)
STRIDE = 8
LEAST_VARIANCE = 64  # grey levels squared, mean over the channels


def read():
    """The source; raises ``Rejected`` E_DATA_FILE when the installed scikit-image lacks a photograph."""
    import skimage

    place = Path(skimage.__file__).parent / "data"
    names = [name for photographs in PHOTOGRAPHS.values() for name in photographs]
    contents = read_files({name: place / name for name in names})
    return Source(text=fingerprint("patches/1", contents), splits=tuple(PHOTOGRAPHS), decode=partial(_decode, contents))


def places(photograph):
    """Every patch of a photograph that may be taken.

    Args:
        photograph: uint8 [height, width, 3].

    Yields:
        (scale, row, column, patch uint8 [32, 32, 3]); row and column count pixels of the shrunk photograph.
    """
    for scale in SCALES:
        small = shrink(photograph, scale)
        for row in range(0, small.shape[0] - IMAGE + 1, STRIDE):
            for column in range(0, small.shape[1] - IMAGE + 1, STRIDE):
                patch = small[row : row + IMAGE, column : column + IMAGE]
                if _is_varied(patch):
                    yield scale, row, column, patch


def shrink(photograph, scale):
    """Averages over ``scale`` × ``scale`` blocks, rounded half up, uint8; an incomplete last block is cut off."""
    height, width = (side // scale for side in photograph.shape[:2])
    blocks = photograph[: height * scale, : width * scale].reshape(height, scale, width, scale, 3)
    return ((blocks.sum((1, 3), dtype=np.int64) + scale * scale // 2) // (scale * scale)).astype(np.uint8)


def _is_varied(patch):
    """Whether the variance of a patch, mean over its channels, is at least ``LEAST_VARIANCE``, in exact integers."""
    values = patch.reshape(-1, 3).astype(np.int64)
    n = len(values)
    return int((n * (values**2).sum(0) - values.sum(0) ** 2).sum()) >= 3 * n * n * LEAST_VARIANCE


def _decode(contents, progress):
    decoded, label = {}, 0
    for split, names in PHOTOGRAPHS.items():
        share = -(-COUNTS[split] // len(names))
        chosen = []
        for name in names:
            photograph = pixels.open_rgb(contents[name])
            if photograph is None:
                raise Rejected("E_DATA_IMAGE", name, "an RGB photograph", "another colour")
            keyed = sorted(
                ((_key(name, *place), patch) for *place, patch in places(photograph)), key=lambda item: item[0]
            )
            chosen += [(turn, label, patch) for turn, (_, patch) in enumerate(keyed[:share])]
            label += 1
            if progress:
                progress("cut photographs", label, sum(map(len, PHOTOGRAPHS.values())))
        chosen = sorted(chosen, key=lambda item: item[:2])[: COUNTS[split]]
        decoded[split] = (
            np.stack([patch for _, _, patch in chosen]),
            np.array([number for _, number, _ in chosen], np.uint8),
        )
    return decoded


def _key(name, scale, row, column):
    return hashlib.sha256(f"vqkit patches/1 {name} {scale} {row} {column}".encode()).digest()

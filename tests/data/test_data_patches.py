"""Patches: exact averages, different photographs for the two splits, the same ones every time, none of one colour."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image
from skimage.transform import downscale_local_mean

from vqkit.data import patches, resolve
from vqkit.errors import Rejected
from vqkit.formats.dataset import open_dataset

# What Pillow and scikit-image gave when the recipe was fixed. Another value means another dataset: a new recipe name.
DIGEST = "sha256:9c6a85e2cc0c1faf8cb6cabaadcca3e30aa418424268cf32c9d2a049ffeface3"


def photograph(name):
    with Image.open(Path(skimage.__file__).parent / "data" / name) as image:
        return np.array(image)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    found = resolve("patches", tmp_path_factory.mktemp("patches"))
    return found, open_dataset(found.folder)


def test_digest_in_this_and_in_another_process(prepared, tmp_path):
    found, _ = prepared
    code = "import sys; from vqkit.data import resolve; print(resolve('patches', sys.argv[1]).digest)"
    again = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == found.digest == DIGEST


def test_counts_and_labels(prepared):
    found, opened = prepared
    assert (found.train, found.evaluation) == (8192, 1024)
    assert np.bincount(opened.labels["train"]).tolist() == [2731, 2731, 2730]
    assert np.bincount(opened.labels["evaluation"]).tolist() == [0, 0, 0, 512, 512]


def test_splits_come_from_different_photographs(prepared):
    assert set(patches.PHOTOGRAPHS["train"]).isdisjoint(patches.PHOTOGRAPHS["evaluation"])
    _, opened = prepared
    train = {image.tobytes() for image in opened.images["train"]}
    assert len(train) == 8192
    assert train.isdisjoint(image.tobytes() for image in opened.images["evaluation"])


@pytest.mark.parametrize("split", ["train", "evaluation"])
def test_every_patch_lies_in_the_photograph_of_its_label(prepared, split):
    _, opened = prepared
    names = [name for group in patches.PHOTOGRAPHS.values() for name in group]
    scales = set()
    for label in set(opened.labels[split].tolist()):
        place = {}
        for scale in (1, 2, 3, 4):
            pixels = photograph(names[label]).astype(np.float64)
            height, width = (side // scale for side in pixels.shape[:2])
            means = downscale_local_mean(pixels[: height * scale, : width * scale], (scale, scale, 1))
            small = np.floor(means + 0.5 + 1e-9).astype(np.uint8)
            for row in range(0, height - 31, 8):
                for column in range(0, width - 31, 8):
                    place[small[row : row + 32, column : column + 32].tobytes()] = scale
        mine = [image.tobytes() for image in opened.images[split][opened.labels[split] == label]]
        assert all(image in place for image in mine)
        scales |= {place[image] for image in mine}
    assert scales == {1, 2, 3, 4}


def test_no_patch_is_of_nearly_one_colour(prepared):
    _, opened = prepared
    for images in opened.images.values():
        assert images.astype(np.float64).var((1, 2)).mean(1).min() >= 64
    flat = np.full((64, 64, 3), 90, np.uint8)
    assert list(patches.places(flat)) == []
    flat[::2] += 30
    assert len({place[0] for place in patches.places(flat)}) == 1


def test_any_prefix_is_a_fair_mix(prepared):
    _, opened = prepared
    for count in (30, 512, 2048):
        shares = np.bincount(opened.labels["train"][:count]) / count
        assert np.abs(shares - 1 / 3).max() < 0.03


def test_shrink_rounds_half_up():
    block = np.array([[0, 1], [0, 1]], np.uint8)[..., None].repeat(3, 2)
    assert patches.shrink(block, 2).tolist() == [[[1, 1, 1]]]
    assert patches.shrink(np.full((9, 9, 3), 255, np.uint8), 4).tolist() == [[[255] * 3] * 2] * 2


def test_missing_photograph(tmp_path, monkeypatch):
    monkeypatch.setattr(skimage, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(Rejected) as caught:
        resolve("patches", tmp_path / "data")
    assert caught.value.codes == ("E_DATA_FILE",) * 5
    assert not (tmp_path / "data").exists()


def test_card_names_the_recipe(prepared):
    found, _ = prepared
    assert json.loads((found.folder / "dataset.json").read_text())["source"].startswith("patches/1 sha256:")

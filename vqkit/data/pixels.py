"""Bytes of image files → uint8 arrays. Nothing is resized, converted or guessed: another size or colour is an error."""

import io

import numpy as np

from vqkit.data.source import bounded, describe
from vqkit.errors import Problem
from vqkit.formats.contract import IMAGE

_FORMATS = ("PNG", "JPEG")
_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_COLOURS = {"L": "greyscale", "1": "black and white", "P": "palette", "LA": "greyscale with alpha", "RGBA": "RGBA"}
_EVERY = 256


def decode(files, split, problems, progress=None):
    """Decode image files in order.

    Args:
        files: (name, bytes) of each PNG or JPEG, in order.
        split: how progress and messages name the lot.
        problems: a list; E_DATA_IMAGE for each bad image is appended, the first 20 and the number of more, or
            E_DATA_EMPTY when there is no image.
        progress: None or ``progress(what, done, total)``.

    Returns:
        uint8 [N, 32, 32, 3], RGB; rows of bad images are zero.
    """
    images = np.zeros((len(files), IMAGE, IMAGE, 3), np.uint8)
    bad = []
    for row, (name, data) in enumerate(files):
        found = _decode_one(data, images[row])
        if found:
            expected = f"a {IMAGE}×{IMAGE} RGB image with 8 bits a channel"
            bad.append(Problem(code="E_DATA_IMAGE", where=name, expected=expected, found=found))
        if progress and ((row + 1) % _EVERY == 0 or row + 1 == len(files)):
            progress(f"decode {split}", row + 1, len(files))
    problems += bounded(bad, split) if files else [empty(split)]
    return images


def labels(values, split, problems):
    """Labels as uint8 [N]; E_DATA_LABEL is appended to ``problems`` for each that is no integer from 0 to 255.

    Args:
        values: (name of the image, int, or anything that is to be reported as found) in order.
    """
    bad = [
        Problem(code="E_DATA_LABEL", where=name, expected="an integer from 0 to 255", found=repr(value)[:80])
        for name, value in values
        if type(value) is not int or not 0 <= value <= 255
    ]
    problems += bounded(bad, split)
    return np.array([] if bad else [value for _, value in values], np.uint8)


def empty(split):
    """The problem of a split without images."""
    return Problem(code="E_DATA_EMPTY", where=split, expected="at least one image", found="none")


def open_rgb(data):
    """The pixels of any RGB image file as uint8 [height, width, 3]; None where it is no such image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return np.asarray(image) if image.mode == "RGB" else None
    except (OSError, SyntaxError):
        return None


def _decode_one(data, target):
    """Decode into ``target``; returns what was found instead of a fitting image, in words, or None."""
    from PIL import Image

    if not data:
        return "no bytes"
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            found = _mismatch(image, data)
            if found is None:
                target[:] = np.asarray(image)
            return found
    except Image.UnidentifiedImageError:
        return describe(data, len(data))
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, … for damaged bytes
        target[:] = 0
        return f"a damaged image ({error})"[:200]


def _mismatch(image, data):
    """What makes an image that can be opened unfit, or None."""
    if image.size != (IMAGE, IMAGE):
        return f"{image.size[0]}×{image.size[1]} pixels"
    if image.mode != "RGB":
        return f"a {_COLOURS.get(image.mode, image.mode)} image"
    if data.startswith(_PNG):
        if data[24] != 8:  # Pillow drops the low bytes without a word
            return f"{data[24]} bits a channel"
        if _PNG_END not in data:
            return "a PNG that is cut off before its end"
        if getattr(image, "n_frames", 1) != 1:
            return f"an animation of {image.n_frames} frames"
    return None

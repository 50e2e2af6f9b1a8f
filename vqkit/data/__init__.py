"""Every image source becomes one canonical file; the same pixels by any route have the same digest.

resolve.py   what a run asks for: a name or a path in, the folder of a prepared dataset out
source.py    what all sources share: a source whose files were read and fingerprinted, but not decoded
pixels.py    bytes of image files → uint8 arrays, with every bad image reported
cifar10.py   torchvision's archive: from a copy, or downloaded
parquet.py   a Parquet pair in the layout of the Hugging Face hub
folder.py    a folder of PNG or JPEG files
patches.py   patches of the photographs that scikit-image ships: the default that is always there
"""

from vqkit.data.resolve import Resolved, list_prepared, resolve, show

__all__ = ["Resolved", "list_prepared", "resolve", "show"]

"""``python -m runner data``: prepare a dataset, list those that are prepared, show one.

    data prepare SOURCE [--name ID] [--root DIR] [--holdout N] [--json]
    data list [--root DIR] [--json]
    data show DATASET [--root DIR] [--json]

SOURCE is ``cifar10``, ``patches``, ``auto`` or a path. Only ``prepare`` ever downloads, and only CIFAR-10. ``list``
repeats what the datasets say of themselves, ``show`` digests the pixels again.
"""

import json
import sys
import time
from argparse import ArgumentTypeError
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from vqkit.data import list_prepared, resolve, show
from vqkit.errors import ArgumentParser

ROOT = Path("data")
_PLAIN_EVERY = 5.0  # seconds between two lines where stderr is no terminal


class Progress:
    """``progress(what, done, total)`` on stderr: a bar on a terminal, now and then a line elsewhere."""

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.bar, self.what, self.shown = None, None, time.monotonic()

    def __call__(self, what, done, total):
        if self.stream.isatty():
            self._draw(what, done, total)
        elif done == total or time.monotonic() - self.shown > _PLAIN_EVERY:
            self.shown = time.monotonic()
            print(f"{what}: {done}" + (f" of {total}" if total else ""), file=self.stream)

    def close(self):
        """Leave the last bar as it stands."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _draw(self, what, done, total):
        if self.bar is None or what != self.what:
            self.close()
            self.what = what
            self.bar = tqdm(total=total, desc=what, unit_scale=True, file=self.stream)
        self.bar.update(done - self.bar.n)


def main(argv):
    """Run the command; returns the exit code or raises ``VqkitError``."""
    arguments = _parser().parse_args(argv)
    return arguments.command(arguments)


def _parser():
    parser = ArgumentParser(prog="python -m runner data", description="Prepare and list datasets.")
    commands = parser.add_subparsers(required=True, metavar="prepare|list|show")
    common = ArgumentParser(add_help=False)
    common.add_argument("--root", type=Path, default=ROOT, metavar="DIR", help="the data root (default: data)")
    common.add_argument("--json", action="store_true", help="print JSON")
    prepare = commands.add_parser("prepare", parents=[common], help="make a canonical dataset from a source")
    prepare.add_argument("source", metavar="SOURCE", help="cifar10, patches, auto, or a path to files or a folder")
    prepare.add_argument("--name", metavar="ID", help="what to call it (default: the name of the folder)")
    prepare.add_argument(
        "--holdout", type=_count, default=0, metavar="N", help="no test split: evaluate on the last N training images"
    )
    prepare.set_defaults(command=_prepare)
    commands.add_parser("list", parents=[common], help="what is prepared").set_defaults(command=_list)
    show = commands.add_parser("show", parents=[common], help="digest a prepared dataset again")
    show.add_argument("source", metavar="DATASET", help="the id of a prepared dataset, or its folder")
    show.set_defaults(command=_show)
    return parser


def _count(text):
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number of images")
    return int(text)


def _prepare(arguments):
    progress = Progress()
    try:
        found = resolve(
            arguments.source,
            arguments.root,
            name=arguments.name,
            holdout=arguments.holdout,
            download=True,
            progress=progress,
        )
    finally:
        progress.close()
    if found.notice:
        print(found.notice, file=sys.stderr)
    _print(found, arguments.json)


def _show(arguments):
    _print(show(arguments.source, arguments.root), arguments.json)


def _list(arguments):
    cards = list_prepared(arguments.root)
    if arguments.json:
        print(json.dumps(cards))
        return
    for card in cards:
        print(f"{card['id']}  {card['train']} + {card['evaluation']}  {card['digest']}  {card['source']}")
    if not cards:
        print(f"nothing is prepared in {arguments.root}")


def _print(found, as_json):
    if as_json:
        print(json.dumps({**asdict(found), "folder": str(found.folder)}))
        return
    print(f"dataset  {found.id}")
    print(f"images   {found.train} training, {found.evaluation} evaluation")
    print(f"digest   {found.digest}")
    print(f"folder   {found.folder}")

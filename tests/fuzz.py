"""python -m tests.fuzz --inputs 1000000: feed the strict readers what nobody would write.

Two kinds of input: mutations of every valid vector, and random bytes made of JSON's own characters. For each of them
the reader may raise ``Rejected`` and nothing else; what it accepts must be written back to the same value, and must
be what Python's own JSON reader sees. Prints the inputs tried, how many were accepted, and the crashes.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

from vqkit.errors import Rejected
from vqkit.formats import canonical, run, signature

VECTORS = Path(__file__).parent / "vectors"
PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"\\n", b"true", b"false", b"null", b"NaN"),
    *(b"-", b"-0", b"-0.0", b"0", b"1", b"9", b".", b"e", b"E", b"+", b"1e999", b"1e-999", b"9007199254740993", b" "),
    *(b"Infinity", b"\x00", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\n", b"/", b'"a"', b'"":'),
    *(b"[" * 40, b'{"a":' * 40),
]
READERS = {
    "plan": run.parse_plan,
    "manifest": run.parse_manifest,
    "terminal": run.parse_terminal,
    "reveal": run.parse_reveal,
    "signature": signature.parse,
}


def mutate(data, source, rng):
    """``data`` with a few places changed: pieces put in, bytes changed, spans cut, doubled or taken from ``source``."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        span = rng.choice((1, 1, 2, 5, 40))
        kind = rng.randrange(6)
        if kind == 0:
            data[at:at] = rng.choice(PIECES)
        elif kind == 1:
            data[at : at + span] = rng.choice(PIECES)
        elif kind == 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del data[at : at + span]
        elif kind == 4:
            data[at:at] = data[at : at + span]
        else:
            start = rng.randrange(len(source))
            data[at:at] = source[start : start + span]
    return bytes(data)


def noise(rng):
    """Pieces of JSON in any order."""
    return b"".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 24)))


def try_one(data, reader):
    """Whether ``data`` was accepted as JSON; raises whatever should not happen."""
    try:
        value = canonical.loads(data)
    except Rejected:
        accepted = False
    else:
        accepted = True
        written = canonical.dumps(value)
        if canonical.loads_canonical(written) != value or json.loads(written) != json.loads(data):
            raise AssertionError("written back to another value")
    if reader is not None:
        try:
            reader(data)
        except Rejected:
            pass
        else:
            if canonical.dumps(canonical.loads(data)) != data:
                raise AssertionError("a format accepted bytes that are not canonical")
    return accepted


def fuzz(inputs, seed, report=None):
    """Try ``inputs`` inputs; returns (accepted, crashes), a crash being (input, exception)."""
    rng = random.Random(seed)
    index = json.loads((VECTORS / "index.json").read_text())["valid"]
    corpus = [(READERS.get(entry["format"]), (VECTORS / "valid" / name).read_bytes()) for name, entry in index.items()]
    corpus = [(reader, data) for reader, data in corpus if data[:1] == b"{"]
    accepted, crashes = 0, []
    for number in range(1, inputs + 1):
        if rng.random() < 0.25:
            reader, data = None, noise(rng)
        else:
            reader, data = rng.choice(corpus)
            data = mutate(data, rng.choice(corpus)[1], rng)
        try:
            accepted += try_one(data, reader if rng.random() < 0.2 else None)
        except Exception as error:
            crashes.append((data, error))
        if report and number % 50_000 == 0:
            report(number, accepted, crashes)
    return accepted, crashes


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)

    def report(number, accepted, crashes):
        print(f"{number} inputs, {accepted} accepted, {len(crashes)} crashes", file=sys.stderr, flush=True)

    started = time.monotonic()
    accepted, crashes = fuzz(options.inputs, options.seed, report)
    for data, error in crashes[:20]:
        print(f"{error!r}: {data!r}")
    seconds = time.monotonic() - started
    print(f"inputs {options.inputs}, accepted {accepted}, crashes {len(crashes)}, seed {options.seed}, {seconds:.0f} s")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Another verifier of one run, V0 to V4, from docs/FORMATS.md alone: V0 to V3 by somebody who read nothing else.

It shares no code with vqkit: the standard library and numpy only. That it agrees with the evaluator shows that the
document says enough; where the two differ, one of them or the document is wrong.

python tests/independent_verifier.py RUN --data DATA --source ROOT --lock LOCK.json
"""

import argparse
import base64
import json
import math
import os
import re
import stat
import sys
from fractions import Fraction

import numpy as np
from independent_formats import (
    CARD,
    DIGEST,
    MANIFEST,
    MIB,
    NAME,
    PLAN,
    SIX,
    Bad,
    canonical,
    digest,
    entry,
    files_digest,
    fits,
    need,
    parse,
    sha,
)

LEVELS = {
    "V0": ("folder", "plan", "manifest"),
    "V1": ("files", "content", "sizes", "evidence_digest", "terminal", "marks", "layout"),
    "V2": ("contract", "source", "dataset", "environment", "plan", "seed"),
    "V3": ("indices", "steps", "finite", "metrics"),
    "V4": ("indices", "reconstruction"),
}


class Incomplete(Exception):
    """There is no run, or no manifest: no verdict."""


# Files and tensors


def read(path, limit=4 * MIB):
    """The bytes of a regular file, no link followed."""
    with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        need(stat.S_ISREG(status.st_mode) and status.st_size <= limit, "not regular or too large")
        data = file.read(limit + 1)
    need(len(data) <= limit, "too large")
    return data


def is_folder(path):
    return os.path.isdir(path) and not os.path.islink(path)


TYPES = {"F32": "<f4", "U32": "<u4", "U16": "<u2", "U8": "|u1"}
LOSSES = ("loss", "reconstruction_loss", "codebook_loss", "commitment_loss", "latent_power")
NORMS = tuple(f"{part}_gradient_norm" for part in ("encoder", "decoder", "coefficients", "basis"))


def width(kind):
    return np.dtype(TYPES[kind]).itemsize


def tensors(name, c, steps):
    """Tensor name → (type, shape) of an evidence file."""
    n, model = c["data"]["evaluation"]["count"], c["model"]
    k, d, h = model["codes"], model["latent_dim"], model["hidden"]
    if name.startswith("mark"):
        indices = ("U16" if k <= 65536 else "U32", [n, 8, 8])
        return {"indices": indices, "reconstruction": ("U8", [n, 32, 32, 3])}
    if name.startswith("steps"):
        return dict.fromkeys(LOSSES + NORMS, ("F32", [steps]))
    weights = {
        "encoder.down1": ([h, 3, 4, 4], h),
        "encoder.down2": ([h, h, 4, 4], h),
        "encoder.out": ([d, h, 3, 3], d),
        "quantizer.projection": ([d, d], d),
        "decoder.inp": ([h, d, 3, 3], h),
        "decoder.up1": ([h, h, 4, 4], h),
        "decoder.up2": ([h, 3, 4, 4], 3),
    }
    shapes = {"quantizer.coefficients": ("F32", [k, d])}
    for part, (shape, out) in weights.items():
        shapes |= {f"{part}.weight": ("F32", shape), f"{part}.bias": ("F32", [out])}
    return shapes


def layout(wanted):
    """Header bytes, total size and name → (type, shape, offset) of the one spelling of a set of tensors."""
    header, places, at = {}, {}, 0
    for name in sorted(wanted, key=lambda name: (-width(wanted[name][0]), name)):
        kind, shape = wanted[name]
        end = at + math.prod(shape) * width(kind)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        places[name] = (kind, shape, at)
        at = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    need(len(head) <= 65536, "header")
    head = len(head).to_bytes(8, "little") + head
    return head, len(head) + at, places


def load(data, wanted):
    head, size, places = layout(wanted)
    need(len(data) == size and data.startswith(head), "layout")
    arrays = {}
    for name, (kind, shape, at) in places.items():
        arrays[name] = np.frombuffer(data, TYPES[kind], math.prod(shape), len(head) + at).reshape(shape)
    return arrays


def most_bytes(wanted):
    return 8 + 65536 + sum(math.prod(shape) * width(kind) for kind, shape in wanted.values())


# What the verifier holds


class Dataset:
    def __init__(self, folder, counts):
        card = parse(read(os.path.join(folder, "dataset.json"), 65536))
        need(fits(card, CARD), "card")
        wanted = {}
        for split in counts:
            wanted[f"{split}_images"] = ("U8", [card[split], 32, 32, 3])
            wanted[f"{split}_labels"] = ("U8", [card[split]])
        held = load(read(os.path.join(folder, "images.safetensors"), 16384 * MIB), wanted)
        self.id, self.enough = card["id"], all(count <= card[split] for split, count in counts.items())
        selected = {}
        for split, count in counts.items():
            parts = {part: sha(held[f"{split}_{part}"][:count].tobytes()) for part in ("images", "labels")}
            selected[split] = {"count": count, "rule": "first", **parts}
        self.digest = digest("dataset", canonical(selected))
        self.images = held["evaluation_images"][: counts["evaluation"]]


def tree(root):
    """The source files below ``root``; a link is refused."""
    found = []
    for top in ("runner", "vqkit"):
        need(is_folder(os.path.join(root, top)), "a missing package")
        for here, folders, names in os.walk(os.path.join(root, top)):
            inside = os.path.relpath(here, root).replace(os.sep, "/")
            need(not any(os.path.islink(os.path.join(here, name)) for name in folders + names), "a link")
            folders[:] = [name for name in folders if f"{inside}/{name}" not in ("runner/sweep", "vqkit/analysis")]
            need(not any(name.endswith(".py") for name in folders), "no regular file")
            found += [
                entry(f"{inside}/{n}", read(os.path.join(here, n), 1024 * MIB)) for n in names if n.endswith(".py")
            ]
    return found


# Metrics and replay


def measure(mark, indices, shown, images, c):
    """The metrics of one mark, as a score has them."""
    k = c["model"]["codes"]
    counts = np.bincount(indices.reshape(-1).astype(np.int64), minlength=k)
    p = counts[counts > 0] / counts.sum()
    perplexity = float(np.exp(-np.sum(p * np.log(p))))
    errors = np.array([np.sum((x.astype(np.int64) - y) ** 2) for x, y in zip(images, shown, strict=True)])
    window = np.exp(-(np.arange(-5, 6) ** 2) / 4.5)
    window /= window.sum()
    rows = np.zeros((22, 32))
    for i in range(22):
        rows[i, i : i + 11] = window

    def smooth(planes):
        return rows @ planes @ rows.T

    similar, c1, c2 = [], 2.55**2, 7.65**2
    for image, other in zip(images, shown, strict=True):
        x, y = (picture.transpose(2, 0, 1).astype(np.float64) for picture in (image, other))
        mx, my = smooth(x), smooth(y)
        vx, vy, vxy = smooth(x * x) - mx**2, smooth(y * y) - my**2, smooth(x * y) - mx * my
        similar.append(np.mean((2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))))
    score = {
        "mark": mark,
        "tokens": int(counts.sum()),
        "counts": counts.tolist(),
        "perplexity": perplexity,
        "normalized_perplexity": perplexity / k,
        "utilization": len(p) / k,
        "mse": float(errors.sum() / (255**2 * images.size)),
        "psnr": float(np.mean(10 * np.log10(255**2 * 3072 / np.maximum(errors, 1)))),
        "ssim": round(float(np.mean(similar)), 12),
        "flags": ["fewer_tokens_than_codes"] if counts.sum() < k else [],
        "guardrails": {},
    }
    for rail in c["analysis"]["guardrails"]:
        value, limit = score[rail["metric"]], rail["limit"]
        broken = value > limit if rail["metric"] == "mse" else value < limit
        score["guardrails"][rail["metric"]] = {"limit": limit, "status": "broken" if broken else "ok"}
    return score


def exhibit(run_id, c, log, shown):
    """What a complete run shows beside its score: ``log`` is its step log, ``shown`` mark → reconstructions."""
    count, steps = c["data"]["evaluation"]["count"], c["data"]["train"]["count"] // c["training"]["batch_size"]
    few = [i * count // min(8, count) for i in range(min(8, count))]

    def means(column):
        epochs = [column[at : at + steps] for at in range(0, len(column), steps)]
        return [float(sum(map(Fraction, epoch))) / steps for epoch in epochs]

    return {
        "schema": "vqkit.exhibit/1",
        "run_id": run_id,
        "curve": {name: [x if abs(x) < 2**53 else None for x in means(log[name].tolist())] for name in LOSSES + NORMS},
        "samples": [
            {"mark": mark, "reconstruction": base64.b64encode(images[few].tobytes()).decode()}
            for mark, images in shown.items()
            if mark
        ],
    }


def conv(x, w, b, stride):
    """Cross-correlation with padding 1 by gathering patches; x [n, c, s, s]."""
    k = w.shape[2]
    patches = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (k, k), (2, 3))
    return np.einsum("ncyxij,ocij->noyx", patches[:, :, ::stride, ::stride], w, optimize=True) + b[:, None, None]


def transposed(x, w, b):
    """Stride 2, padding 1: the input spread out with zeros, correlated with the flipped kernel."""
    spread = np.zeros((*x.shape[:2], 2 * x.shape[2] + 1, 2 * x.shape[3] + 1))
    spread[:, :, 1:-1:2, 1:-1:2] = x
    return conv(spread, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), b, 1)


def replayed(state, images, stored, shown, way):
    """(indices agree, reconstructions agree) of one mark under one normalization."""
    w = {name: array.astype(np.float64) for name, array in state.items()}

    def layer(function, x, part, *stride):
        return function(x, w[f"{part}.weight"], w[f"{part}.bias"], *stride)

    x = images.astype(np.float64).transpose(0, 3, 1, 2) / 127.5 - 1
    x = np.maximum(layer(conv, np.maximum(layer(conv, x, "encoder.down1", 2), 0), "encoder.down2", 2), 0)
    z = layer(conv, x, "encoder.out", 1).transpose(0, 2, 3, 1)
    q = w["quantizer.coefficients"] @ w["quantizer.projection.weight"].T + w["quantizer.projection.bias"]
    if way == "l2":
        z, q = (a / np.maximum(np.sqrt((a**2).sum(-1, keepdims=True)), 1e-12) for a in (z, q))
    elif way == "layer_norm":
        z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)
    d = ((z[..., None, :] - q) ** 2).sum(-1)
    gap = np.take_along_axis(d, stored[..., None].astype(int), -1)[..., 0] - d.min(-1)
    gap /= (z**2).sum(-1) + (q[stored] ** 2).sum(-1) + 1e-300
    differs = d.argmin(-1) != stored
    y = np.maximum(layer(conv, q[stored].transpose(0, 3, 1, 2), "decoder.inp", 1), 0)
    y = layer(transposed, np.maximum(layer(transposed, y, "decoder.up1"), 0), "decoder.up2")
    pixels = np.clip(np.rint((y + 1) * 127.5), 0, 255).transpose(0, 2, 3, 1)
    return differs.mean() <= 0.001 and not (gap[differs] > 1e-5).any(), np.abs(pixels - shown).max() <= 1


# The ladder


class Run:
    """One run: ``checks`` maps each check that was made to whether it passed, ``marks`` are the metrics."""

    def __init__(self, folder, data, source, lock):
        self.folder, self.data, self.source, self.lock = folder, data, source, lock
        self.checks, self.marks, self.evidence, self.arrays, self.exhibit = {}, [], {}, {}, None

    def check(self, name, test):
        """Make a check; whatever a file of the run holds, the answer is yes or no."""
        try:
            self.checks[name] = bool(test())
        except (Bad, OSError):
            self.checks[name] = False

    def failed(self, *levels):
        return any(not passed for name, passed in self.checks.items() if name[:2] in levels)

    @property
    def level(self):
        """The level reached: what was not made counts as what failed."""
        reached = "none"
        for level, names in LEVELS.items():
            made = {".".join(name.split(".")[:2]) for name in self.checks}
            if self.failed(level) or not {f"{level}.{name}" for name in names} <= made:
                break
            reached = level
        return reached

    def at(self, *parts):
        return os.path.join(self.folder, *parts)

    def climb(self):
        self.well_formed()
        if self.failed("V0"):
            return
        c = self.contract = self.plan["contract"]
        self.sealed, self.terminal = self.manifest["predicate"], self.manifest["predicate"]["terminal"]
        self.per_epoch = c["data"]["train"]["count"] // c["training"]["batch_size"]
        self.planned = max(self.plan["marks"], default=0) * self.per_epoch
        self.complete = self.terminal["state"] == "complete"
        self.intact()
        self.bound()
        if not self.failed("V1"):
            self.recomputed()
        if self.marks and not self.failed("V1", "V2", "V3"):
            self.replay()

    def well_formed(self):
        if not os.path.lexists(self.folder):
            raise Incomplete
        if is_folder(self.folder) and not os.path.lexists(self.at("manifest.json")):
            raise Incomplete
        self.check("V0.folder", lambda: is_folder(self.folder))
        if self.failed("V0"):
            return

        def plan():
            self.plan_bytes = read(self.at("plan.json"))
            self.plan = parse(self.plan_bytes)
            return fits(self.plan, PLAN)

        def manifest():
            self.manifest_bytes = read(self.at("manifest.json"))
            m = self.manifest = parse(self.manifest_bytes)
            need(fits(m, MANIFEST))
            names, again = ([file["name"] for file in part] for part in (m["subject"], m["predicate"]["evidence"]))
            return len(set(names)) == len(names) == len(again) <= 4096 and set(names) == set(again)

        self.check("V0.plan", plan)
        self.check("V0.manifest", manifest)

    def intact(self):
        hashes = {subject["name"]: subject["digest"]["sha256"] for subject in self.manifest["subject"]}
        there = is_folder(self.at("evidence"))
        terminal, evidence = self.terminal, self.evidence

        def files():
            for name in os.listdir(self.folder):
                if re.fullmatch(r"\.manifest\.json\.[0-9]+\.tmp", name):
                    need(read(self.at(name)) == self.manifest_bytes)
                elif name == "sealed":
                    need(is_folder(self.at(name)))
                else:
                    need(name in ("plan.json", "manifest.json", "manifest.dsse.json", "evidence"))
            return there and set(os.listdir(self.at("evidence"))) == set(hashes)

        def content(name):
            limit = 65536 if name == "terminal.json" else most_bytes(self.tensors(name))
            evidence[name] = read(self.at("evidence", name), min(limit, 1024 * MIB - sum(map(len, evidence.values()))))
            return sha(evidence[name]) == hashes[name]

        def marks():
            first = self.plan["marks"][: None if self.complete else len(terminal["marks"])]
            named = {f"{kind}-{mark:04d}.safetensors" for mark in terminal["marks"] for kind in ("mark", "state")}
            return terminal["marks"] == first and set(hashes) == named | {"steps.safetensors", "terminal.json"}

        def tensor_files():
            self.arrays = {n: load(data, self.tensors(n)) for n, data in evidence.items() if n != "terminal.json"}
            return True

        self.check("V1.files", files)
        for name in sorted(hashes) if there else ():
            self.check(f"V1.content.{name}", lambda name=name: content(name))
        sizes = {file["name"]: file["size"] for file in self.sealed["evidence"]}
        self.check("V1.sizes", lambda: all(len(data) == sizes[name] for name, data in evidence.items()))
        found = files_digest("evidence", [entry(name, data) for name, data in evidence.items()])
        self.check("V1.evidence_digest", lambda: found == self.sealed["digests"]["evidence"])
        self.check("V1.terminal", lambda: evidence.get("terminal.json") == canonical(terminal))
        self.check("V1.marks", marks)
        self.check("V1.layout", tensor_files)

    def tensors(self, name):
        return tensors(name, self.contract, min(self.terminal["steps"], self.planned))

    def bound(self):
        plan, sealed, c, named = self.plan, self.sealed, self.contract, self.plan["digests"]
        own_tree = tree(self.source)
        lock = parse(read(self.lock), is_canonical=False)
        need(isinstance(lock, dict) and all(NAME(k) and DIGEST(v) for k, v in lock.items()), "lock")
        contract_digest = digest("contract", canonical(c))

        def source():
            once = len({file["name"] for file in plan["source"]}) == len(plan["source"])
            return once and files_digest("source", plan["source"]) == named["source"] == files_digest(
                "source", own_tree
            )

        def plan_agrees():
            agree = sealed["plan"] == digest("plan", self.plan_bytes) and sealed["run_id"] == plan["run_id"]
            agree = agree and all(sealed["digests"][kind] == named[kind] for kind in SIX)
            agree = agree and contract_digest == named["contract"] and plan["dataset"]["digest"] == named["dataset"]
            return agree and plan["marks"] == [mark for mark in c["marks"] if mark in plan["marks"]] != []

        self.check("V2.contract", lambda: lock.get(c["name"]) == contract_digest)
        self.check("V2.source", source)
        if c["data"]["datasets"] != "any" and plan["dataset"]["id"] not in c["data"]["datasets"]:
            self.checks["V2.dataset"] = False
        elif self.checks["V2.contract"]:
            own = Dataset(self.data, {split: c["data"][split]["count"] for split in ("train", "evaluation")})
            self.images = own.images
            self.check("V2.dataset", lambda: own.enough and plan["dataset"] == {"id": own.id, "digest": own.digest})
        self.check(
            "V2.environment", lambda: digest("environment", canonical(plan["environment"])) == named["environment"]
        )
        self.check("V2.plan", plan_agrees)
        phase = "evaluation" if plan["phase"] == "confirmatory" else "development"
        self.check("V2.seed", lambda: plan["seed"] in c["seeds"][phase])

    def recomputed(self):
        terminal, k = self.terminal, self.contract["model"]["codes"]
        measured = {mark: self.arrays[f"mark-{mark:04d}.safetensors"] for mark in terminal["marks"]}

        def steps():
            run, applied = terminal["steps"], terminal["steps_applied"]
            fine = (
                terminal["steps_planned"] == self.planned and applied + terminal["steps_skipped"] <= run <= self.planned
            )
            fine = fine and (not self.complete or applied == self.planned)
            return fine and all(mark * self.per_epoch <= run for mark in measured)

        def metrics():
            for mark, one in measured.items():
                self.marks.append(measure(mark, one["indices"], one["reconstruction"], self.images, self.contract))
            shown = {mark: one["reconstruction"] for mark, one in measured.items()}
            log = self.arrays["steps.safetensors"]
            if self.checks["V3.finite"]:
                self.exhibit = canonical(exhibit(self.plan["run_id"], self.contract, log, shown))
            return True

        self.check("V3.indices", lambda: all(int(one["indices"].max()) < k for one in measured.values()))
        self.check("V3.steps", steps)
        if self.complete:
            floats = [a for arrays in self.arrays.values() for a in arrays.values() if a.dtype == np.float32]
            self.check("V3.finite", lambda: all(np.isfinite(a).all() for a in floats))
            if self.checks["V3.indices"] and not self.failed("V2"):
                self.check("V3.metrics", metrics)

    def replay(self):
        outcomes = []
        for way in ("none", "l2", "layer_norm"):
            pairs = []
            for mark in self.plan["marks"]:
                seed = int(sha(self.manifest_bytes + mark.to_bytes(8, "big")), 16)
                drawn = np.sort(np.random.default_rng(seed).permutation(len(self.images))[:64])
                state, one = (self.arrays[f"{kind}-{mark:04d}.safetensors"] for kind in ("state", "mark"))
                pairs.append(
                    replayed(state, self.images[drawn], one["indices"][drawn], one["reconstruction"][drawn], way)
                )
            outcomes.append((all(pair[0] for pair in pairs), all(pair[1] for pair in pairs)))
        self.checks["V4.indices"], self.checks["V4.reconstruction"] = max(outcomes, key=sum)


def verify(folder, data, source, lock):
    """The ``Run`` at ``folder``, its checks made; raises ``Incomplete``, and ``Bad`` for the verifier's own inputs."""
    run = Run(folder, data, source, lock)
    run.climb()
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    for name in ("data", "source", "lock"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    try:
        run = verify(options.run, options.data, options.source, options.lock)
    except Incomplete:
        print("incomplete")
        return 7
    except (Bad, OSError) as error:
        print(f"the verifier's own inputs: {error}")
        return 3
    for name, passed in run.checks.items():
        print(f"{name}  {'passed' if passed else 'FAILED'}")
    print(f"reached {run.level}")
    return 6 if run.failed(*LEVELS) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Another verifier, V0 to V4, after docs/FORMATS.md: standard library and numpy, nothing of vqkit.

python tests/independent_verifier.py RUN DATA LOCK.json SOURCE_ROOT
"""

import hashlib
import json
import math
import os
import re
import stat
import sys
from pathlib import Path

import numpy as np

KINDS = ("source", "intervention", "proposal", "dataset", "environment", "contract")
TYPES = {"F32": "<f4", "U8": "|u1", "U16": "<u2", "U32": "<u4"}
COLUMNS = "loss reconstruction_loss codebook_loss commitment_loss latent_power encoder_gradient_norm "
COLUMNS += "decoder_gradient_norm coefficients_gradient_norm basis_gradient_norm"
PLAN_KEYS = "schema run_id phase contract dataset seed marks device threads environment source digests"
TERMINAL_KEYS = "schema state reason marks steps steps_planned steps_applied steps_skipped"
PREDICATE_KEYS = "schema run_id plan digests evidence terminal resources"
RESOURCE_KEYS = "started ended wall_seconds training_seconds images_per_second peak_memory_bytes"
STATES = ("complete", "nonfinite", "invalid", "cancelled", "budget_exceeded", "error")


def require(condition, why="refused"):
    if not condition:
        raise ValueError(why)


def number(x):
    """A number as ECMAScript writes it."""
    if isinstance(x, int) or (x == int(x) and abs(x) < 1e21):
        return str(int(x))
    mantissa, _, exponent = f"{x!r}e0".partition("e")[0], None, f"{x!r}e0".split("e")[1]
    sign, mantissa = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))  # digits before the decimal point
    digits = digits.rstrip("0")
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point <= 21:
        return sign + (f"{digits[:point]}.{digits[point:]}" if point < len(digits) else digits.ljust(point, "0"))
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def canonical(v):
    if isinstance(v, dict):
        return "{" + ",".join(f"{canonical(k)}:{canonical(v[k])}" for k in sorted(v)) + "}"
    if isinstance(v, list):
        return "[" + ",".join(map(canonical, v)) + "]"
    return number(v) if type(v) in (int, float) else json.dumps(v, ensure_ascii=False)


def read_json(data):
    """Strict and canonical; what canonical bytes exclude by themselves needs no rule of its own."""
    require(len(data) <= 4 << 20)
    value = json.loads(data.decode("utf-8"), parse_constant=lambda _: require(False))
    require(canonical(value).encode() == data, "not canonical")
    return value


def keys(value, names):
    require(isinstance(value, dict) and set(value) == set(names.split()), "other keys")


def digest(kind, *parts):
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return "sha256:" + hashlib.sha256(f"vqkit.{kind}/1\n".encode() + framed).hexdigest()


def of_json(kind, value, *before):
    return digest(kind, *before, canonical(value).encode())


def of_files(kind, entries):
    return of_json(kind, [{"name": n, "size": s, "sha256": h} for n, s, h in sorted(entries)])


def sha(data):
    return hashlib.sha256(data).hexdigest()


def read_file(path, limit=1 << 30):
    state = os.lstat(path)
    require(stat.S_ISREG(state.st_mode) and state.st_size <= limit, "no regular file of that size")
    return Path(path).read_bytes()


def is_digest(text):
    return isinstance(text, str) and re.fullmatch("sha256:[0-9a-f]{64}", text) is not None


def layout(name, c, steps):
    n, k, d, h = c["data"]["evaluation"]["count"], c["model"]["codes"], c["model"]["latent_dim"], c["model"]["hidden"]
    if name.startswith("mark"):
        return {"indices": ("U16" if k <= 65536 else "U32", [n, 8, 8]), "reconstruction": ("U8", [n, 32, 32, 3])}
    if name.startswith("steps"):
        return {column: ("F32", [steps]) for column in COLUMNS.split()}
    convs = {"encoder.down1": (h, [h, 3, 4, 4]), "encoder.down2": (h, [h, h, 4, 4]), "encoder.out": (d, [d, h, 3, 3])}
    convs |= {"decoder.inp": (h, [h, d, 3, 3]), "decoder.up1": (h, [h, h, 4, 4]), "decoder.up2": (3, [h, 3, 4, 4])}
    convs["quantizer.projection"] = (d, [d, d])
    shapes = {f"{part}.bias": [out] for part, (out, _) in convs.items()}
    shapes |= {f"{part}.weight": shape for part, (_, shape) in convs.items()}
    return {name: ("F32", shape) for name, shape in (shapes | {"quantizer.coefficients": [k, d]}).items()}


def spelled(wanted):
    """The header bytes of a tensor file, and name → (type, shape, from, to)."""
    at, places = 0, {}
    for name in sorted(wanted, key=lambda name: (-np.dtype(TYPES[wanted[name][0]]).itemsize, name)):
        kind, shape = wanted[name]
        size = np.dtype(TYPES[kind]).itemsize * math.prod(shape)
        places[name] = (kind, shape, at, at + size)
        at += size
    header = {n: {"dtype": k, "shape": s, "data_offsets": [a, b]} for n, (k, s, a, b) in places.items()}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places, at


def tensors(data, wanted):
    head, places, size = spelled(wanted)
    require(data[: len(head)] == head and len(data) == len(head) + size, "another spelling")
    body = data[len(head) :]
    return {n: np.frombuffer(body[a:b], TYPES[k]).reshape(s) for n, (k, s, a, b) in places.items()}


def dataset(folder, counts):
    """(id, digest, evaluation images) of the selection."""
    card = read_json(read_file(folder / "dataset.json"))
    wanted = {}
    for split in ("train", "evaluation"):
        wanted |= {f"{split}_images": ("U8", [card[split], 32, 32, 3]), f"{split}_labels": ("U8", [card[split]])}
    held, selected = tensors(read_file(folder / "images.safetensors"), wanted), {}
    for split, count in counts.items():
        require(count <= card[split], "too few images")
        parts = {part: sha(held[f"{split}_{part}"][:count].tobytes()) for part in ("images", "labels")}
        selected[split] = {"count": count, "rule": "first", **parts}
    return card["id"], of_json("dataset", selected), held["evaluation_images"][: counts["evaluation"]]


def listing(root):
    names = [path.relative_to(root).as_posix() for top in ("runner", "vqkit") for path in (root / top).rglob("*.py")]
    kept = [name for name in names if not name.startswith(("runner/sweep/", "vqkit/analysis/"))]
    return [(name, len(data), sha(data)) for name in kept for data in [(root / name).read_bytes()]]


def metrics(indices, images, others, k):
    counts = np.bincount(indices.reshape(-1), minlength=k)
    p = counts[counts > 0] / counts.sum()
    perplexity = math.exp(-(p * np.log(p)).sum())
    x, y = images.astype(np.float64), others.astype(np.float64)
    errors = ((x - y) ** 2).reshape(len(x), -1).sum(1)
    g = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    g /= g.sum()

    def smooth(a):
        rows = sum(g[i] * a[:, i : i + 22] for i in range(11))
        return sum(g[i] * rows[:, :, i : i + 22] for i in range(11))

    mx, my, c1, c2 = smooth(x), smooth(y), (0.01 * 255) ** 2, (0.03 * 255) ** 2
    vx, vy, vxy = smooth(x * x) - mx * mx, smooth(y * y) - my * my, smooth(x * y) - mx * my
    ssim = (2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    psnr = np.mean(10 * np.log10(255**2 * 3072 / np.maximum(errors, 1)))
    values = {"perplexity": perplexity, "normalized_perplexity": perplexity / k, "utilization": len(p) / k}
    return values | {"mse": errors.sum() / x.size / 255**2, "psnr": psnr, "ssim": ssim.mean()}


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
    nearest = d.argmin(-1)
    gap = np.take_along_axis(d, stored[..., None].astype(int), -1)[..., 0] - d.min(-1)
    gap /= (z**2).sum(-1) + (q[stored] ** 2).sum(-1) + 1e-300
    differs = nearest != stored
    y = np.maximum(layer(conv, q[stored].transpose(0, 3, 1, 2), "decoder.inp", 1), 0)
    y = layer(transposed, np.maximum(layer(transposed, y, "decoder.up1"), 0), "decoder.up2")
    pixels = np.clip(np.rint((y + 1) * 127.5), 0, 255).transpose(0, 2, 3, 1)
    return differs.mean() <= 0.001 and not (gap[differs] > 1e-5).any(), np.abs(pixels - shown).max() <= 1


def verify(folder, data, lock, root):
    """(check → True, False or None for not run, mark → metrics)."""
    checks, marks = {}, {}
    checks["V0.folder"] = stat.S_ISDIR(os.lstat(folder).st_mode)
    if not checks["V0.folder"]:
        return checks, marks
    plan = manifest = None
    try:
        raw = read_file(folder / "plan.json")
        plan = read_json(raw)
        keys(plan, PLAN_KEYS)
        keys(plan["digests"], " ".join(KINDS))
        keys(plan["contract"], "schema name data model training marks seeds knobs analysis")
        require(all(map(is_digest, plan["digests"].values())) and plan["schema"] == "vqkit.plan/1")
        checks["V0.plan"] = True
    except (ValueError, OSError, TypeError, KeyError, AttributeError):
        checks["V0.plan"] = False
    try:
        sealed = read_file(folder / "manifest.json")
        manifest = read_json(sealed)
        keys(manifest, "_type subject predicateType predicate")
        p = manifest["predicate"]
        keys(p, PREDICATE_KEYS)
        keys(p["terminal"], TERMINAL_KEYS)
        keys(p["resources"], RESOURCE_KEYS)
        keys(p["digests"], "evidence " + " ".join(KINDS))
        for subject in manifest["subject"]:
            keys(subject, "name digest")
            keys(subject["digest"], "sha256")
        names = [subject["name"] for subject in manifest["subject"]]
        known = r"steps\.safetensors|terminal\.json|(mark|state)-[0-9]{4}\.safetensors"
        require(len(set(names)) == len(names) and all(re.fullmatch(known, name) for name in names))
        require(sorted(names) == sorted(entry["name"] for entry in p["evidence"]) and p["terminal"]["state"] in STATES)
        checks["V0.manifest"] = True
    except (ValueError, OSError, TypeError, KeyError, AttributeError):
        checks["V0.manifest"] = False
    if not all(checks.values()):
        return checks, marks
    c, terminal = plan["contract"], p["terminal"]
    per_epoch = c["data"]["train"]["count"] // c["training"]["batch_size"]
    planned = max(plan["marks"], default=0) * per_epoch
    wanted = {name: layout(name, c, min(terminal["steps"], planned)) for name in names if name != "terminal.json"}

    # V1
    there = {entry.name for entry in os.scandir(folder)}
    there -= {
        n for n in there if re.fullmatch(r"\.manifest\.json\.\d+\.tmp", n) and (folder / n).read_bytes() == sealed
    }
    fine = there <= {"plan.json", "manifest.json", "manifest.dsse.json", "evidence", "sealed"}
    fine = fine and ("sealed" not in there or stat.S_ISDIR(os.lstat(folder / "sealed").st_mode))
    is_folder = "evidence" in there and stat.S_ISDIR(os.lstat(folder / "evidence").st_mode)
    checks["V1.files"] = fine and is_folder and set(os.listdir(folder / "evidence")) == set(names)
    contents = {}
    for subject in manifest["subject"] if is_folder else ():
        name = subject["name"]
        try:
            limit = 1 << 16 if name == "terminal.json" else 8 + (1 << 16) + spelled(wanted[name])[2]
            contents[name] = read_file(folder / "evidence" / name, min(limit, 1 << 30))
            checks[f"V1.content.{name}"] = sha(contents[name]) == subject["digest"]["sha256"]
        except (ValueError, OSError):
            checks[f"V1.content.{name}"] = False
    sizes = {entry["name"]: entry["size"] for entry in p["evidence"]}
    checks["V1.sizes"] = all(len(content) == sizes[name] for name, content in contents.items())
    found = of_files("evidence", [(name, len(content), sha(content)) for name, content in contents.items()])
    checks["V1.evidence_digest"] = found == p["digests"]["evidence"]
    checks["V1.terminal"] = contents.get("terminal.json") == canonical(terminal).encode()
    complete, measured = terminal["state"] == "complete", terminal["marks"]
    expected = {f"{kind}-{mark:04d}.safetensors" for mark in measured for kind in ("mark", "state")}
    first = plan["marks"] if complete else plan["marks"][: len(measured)]
    checks["V1.marks"] = measured == first and set(names) == expected | {"steps.safetensors", "terminal.json"}
    arrays = {}
    for name in contents.keys() & wanted.keys():
        try:
            arrays[name] = tensors(contents[name], wanted[name])
        except ValueError:
            checks["V1.layout"] = False
    checks.setdefault("V1.layout", True)

    # V2
    checks["V2.contract"] = lock.get(c["name"]) == of_json("contract", c)
    entries = [(entry["name"], entry["size"], entry["sha256"]) for entry in plan["source"]]
    own = of_files("source", listing(root))
    checks["V2.source"] = of_files("source", entries) == own == plan["digests"]["source"]
    images = None
    if checks["V2.contract"]:
        counts = {split: c["data"][split]["count"] for split in ("train", "evaluation")}
        name, found, images = dataset(data, counts)
        allowed = c["data"]["datasets"] == "any" or name in c["data"]["datasets"]
        checks["V2.dataset"] = allowed and {"id": name, "digest": found} == plan["dataset"]
    checks["V2.environment"] = of_json("environment", plan["environment"]) == plan["digests"]["environment"]
    agree = p["plan"] == digest("plan", raw) and p["run_id"] == plan["run_id"]
    agree = agree and all(p["digests"][kind] == plan["digests"][kind] for kind in KINDS)
    agree = agree and plan["digests"]["contract"] == of_json("contract", c)
    agree = agree and plan["dataset"]["digest"] == plan["digests"]["dataset"]
    of_contract = [mark for mark in c["marks"] if mark in plan["marks"]]
    checks["V2.plan"] = agree and plan["marks"] == of_contract != []
    phase = "development" if plan["phase"] == "development" else "evaluation"
    checks["V2.seed"] = plan["seed"] in c["seeds"][phase]

    # V3
    if not all(passed for check, passed in checks.items() if check < "V2"):
        return checks, marks
    k = c["model"]["codes"]
    pictures = {mark: arrays[f"mark-{mark:04d}.safetensors"] for mark in measured}
    checks["V3.indices"] = all((one["indices"] < k).all() for one in pictures.values())
    steps, applied, skipped = (terminal[name] for name in ("steps", "steps_applied", "steps_skipped"))
    counted = terminal["steps_planned"] == planned and applied + skipped <= steps <= planned
    counted = counted and all(mark * per_epoch <= steps for mark in measured)
    checks["V3.steps"] = counted and (not complete or applied == planned)
    if not complete:
        return checks, marks
    floats = [array for one in arrays.values() for array in one.values() if array.dtype == "<f4"]
    checks["V3.finite"] = all(np.isfinite(array).all() for array in floats)
    if not all(passed for check, passed in checks.items() if "V2" < check < "V3") or not checks["V3.indices"]:
        return checks, marks
    marks = {m: metrics(one["indices"], images, one["reconstruction"], k) for m, one in pictures.items()}
    checks["V3.metrics"] = True

    # V4
    if not all(checks.values()):
        return checks, marks
    outcomes = []
    for way in ("none", "l2", "layer_norm"):
        pairs = []
        for mark, one in pictures.items():
            seed = int(sha(sealed + mark.to_bytes(8, "big")), 16)
            drawn = np.sort(np.random.default_rng(seed).permutation(len(images))[:64])
            state = arrays[f"state-{mark:04d}.safetensors"]
            pairs.append(replayed(state, images[drawn], one["indices"][drawn], one["reconstruction"][drawn], way))
        outcomes.append((all(pair[0] for pair in pairs), all(pair[1] for pair in pairs)))
    checks["V4.indices"], checks["V4.reconstruction"] = max(outcomes, key=sum)
    return checks, marks


if __name__ == "__main__":
    run, data, lock, root = map(Path, sys.argv[1:])
    checks, marks = verify(run, data, json.loads(lock.read_bytes()), root)
    print(*(f"{check}  {'passed' if passed else 'FAILED'}" for check, passed in checks.items()), sep="\n")
    sys.exit(0 if all(checks.values()) else 6)

"""What a campaign leaves on disk: planned first, scored blind, unblinded last.

DIR/campaign.json        contract, phase, cells with opaque run ids, marks, seeds, digests
DIR/sealed/arms.json     salt, arms, which cell belongs to which; mode 0600, not read before the scores are frozen
DIR/ledger.jsonl         hash-chained events
DIR/runs/RUN_ID/         one run directory a cell, published by rename when it is sealed
DIR/attempts/RUN_ID.N/   what a cell left before it was tried again
DIR/scores/RUN_ID.json   metrics by the evaluator, blind to the arm; what is decided rests on these alone
DIR/exhibits/RUN_ID.json what people want to see of a run: training curve, a few reconstructions; its score names it
DIR/setting.json         what all runs share: the environment's facts, the originals of those reconstructions
DIR/frozen.json          the digest of every score and of the setting, with what is missing
DIR/unblinded.json       the arm of every cell
DIR/results.parquet, results.csv, calibration.json, report.html, report.md, figures/, tensorboard/
"""

import base64
import contextlib
import os

import numpy as np

from vqkit.errors import Rejected, raise_all
from vqkit.formats import canonical, digests, files, knobs, locks, schema
from vqkit.formats.contract import IMAGE, METRICS, QUALITY, Contract
from vqkit.formats.intervention import PHASES
from vqkit.formats.run import FACTS, PLAN_DIGESTS, RUN_ID, STATES, STEP_COLUMNS, THREADS
from vqkit.formats.schema import COUNT, DIGEST, HEX64, NAME, POSITIVE, TEXT, closed

CAMPAIGN, ARMS, LEDGER, FROZEN, UNBLINDED, SETTING = (
    "campaign.json",
    "sealed/arms.json",
    "ledger.jsonl",
    "frozen.json",
    "unblinded.json",
    "setting.json",
)
RUNS, SCORES, EXHIBITS, ATTEMPTS = "runs", "scores", "exhibits", "attempts"
SHOWN = 8  # evaluation images in an exhibit
MAX_BYTES = 256 << 20
EVENTS = ("planned", "claimed", "sealed", "failed", "retried", "scored", "frozen", "unblinded", "calibrated")
OUTCOMES = (*STATES, "timeout", "crashed", "missing", "unverified")  # of a cell, in every table
LEVELS = ("none", "V0", "V1", "V2", "V3", "V4", "V5")

_NUMBER = {"type": "number"}
_MARKS = {"type": "array", "items": COUNT, "minItems": 1, "uniqueItems": True}

CAMPAIGN_SCHEMA = closed(
    optional=("calibration",),
    schema={"const": "vqkit.campaign/1"},
    name=NAME,
    phase={"enum": list(PHASES)},
    contract={"type": "object"},
    dataset=closed(id=NAME, digest=DIGEST),
    seeds={"type": "array", "items": COUNT, "minItems": 1, "uniqueItems": True},
    marks=_MARKS,
    device={"enum": ["cpu", "cuda"]},
    threads=THREADS,
    sweep=DIGEST,
    calibration=closed(digest=DIGEST, budget_mark=POSITIVE, primary_metric={"enum": list(METRICS)}),
    digests=closed(source=DIGEST, environment=DIGEST, contract=DIGEST, dataset=DIGEST, analysis=DIGEST, arms=DIGEST),
    cells={"type": "array", "items": closed(run_id=RUN_ID, seed=COUNT, intervention=DIGEST), "minItems": 1},
)
ARMS_SCHEMA = closed(
    schema={"const": "vqkit.arms/1"},
    salt=HEX64,
    arms={
        "type": "array",
        "minItems": 1,
        "items": closed(
            label=NAME,
            role={"enum": ["reference", "arm"]},
            proposal=TEXT | {"maxLength": 1 << 18},
            effective=knobs.assignment_schema(),
            status={"enum": ["reference", "effective", "no_effect"]},
        ),
    },
    cells={"type": "array", "items": closed(run_id=RUN_ID, arm=NAME)},
)
CHECK_SCHEMA = closed(
    id={"type": "string", "pattern": "^V[0-5]\\.[a-z0-9_.-]+$"},
    level={"enum": list(LEVELS[1:])},
    status={"enum": ["passed", "failed", "not_run"]},
    expected=TEXT,
    found=TEXT,
)
MARK_SCORE_SCHEMA = closed(
    mark=COUNT,
    tokens=COUNT,
    perplexity=_NUMBER,
    normalized_perplexity=_NUMBER,
    utilization=_NUMBER,
    mse=_NUMBER,
    psnr=_NUMBER,
    ssim=_NUMBER,
    counts={"type": "array", "items": COUNT},
    flags={"type": "array", "items": {"enum": ["fewer_tokens_than_codes"]}},
    guardrails={
        "type": "object",
        "propertyNames": {"enum": list(QUALITY)},
        "additionalProperties": closed(limit=_NUMBER, status={"enum": ["ok", "broken"]}),
    },
)
SCORE_SCHEMA = closed(
    schema={"const": "vqkit.score/1"},
    run_id=RUN_ID,
    seed={"type": ["integer", "null"]},
    state={"enum": list(OUTCOMES)},
    verification=closed(
        status={"enum": ["passed", "failed"]},
        level={"enum": list(LEVELS)},
        checks={"type": "array", "items": CHECK_SCHEMA},
        not_proven={"type": "array", "items": TEXT},
    ),
    digests={
        "type": "object",
        "propertyNames": {"enum": [*PLAN_DIGESTS, "plan", "evidence", "manifest", "exhibit"]},
        "additionalProperties": DIGEST,
    },
    resources={"type": ["object", "null"]},
    marks={"type": "array", "items": MARK_SCORE_SCHEMA},
)
_IMAGES = {
    "type": "string",
    "pattern": f"^([A-Za-z0-9+/]{{{IMAGE * IMAGE * 4}}}){{1,{SHOWN}}}$",
}  # 3 bytes → 4 characters
_MEANS = {"type": "array", "items": {"type": ["number", "null"]}}
EXHIBIT_SCHEMA = closed(
    schema={"const": "vqkit.exhibit/1"},
    run_id=RUN_ID,
    curve=closed(**dict.fromkeys(STEP_COLUMNS, _MEANS)),
    samples={"type": "array", "items": closed(mark=POSITIVE, reconstruction=_IMAGES)},
)
SETTING_SCHEMA = closed(
    schema={"const": "vqkit.setting/1"},
    environment={"anyOf": [FACTS, {"type": "null"}]},
    images={"type": "array", "items": COUNT, "minItems": 1, "maxItems": SHOWN, "uniqueItems": True},
    originals=_IMAGES,
)
FROZEN_SCHEMA = closed(
    schema={"const": "vqkit.frozen/1"},
    campaign=DIGEST,
    planned=COUNT,
    complete=COUNT,
    failed=COUNT,
    missing=COUNT,
    setting=DIGEST,
    scores={"type": "array", "items": closed(run_id=RUN_ID, score=DIGEST, state={"enum": list(OUTCOMES)})},
)
UNBLINDED_SCHEMA = closed(
    schema={"const": "vqkit.unblinded/1"},
    campaign=DIGEST,
    frozen=DIGEST,
    arms={
        "type": "array",
        "items": closed(
            label=NAME,
            role={"enum": ["reference", "arm"]},
            intervention=DIGEST,
            effective=knobs.assignment_schema(),
            status={"enum": ["reference", "effective", "no_effect"]},
            expected=closed(
                metric={"enum": [*METRICS, *QUALITY]}, direction={"enum": ["increase", "decrease", "no_change"]}
            ),
            rationale=TEXT,
        ),
    },
    cells={"type": "array", "items": closed(run_id=RUN_ID, arm=NAME)},
)
EVENT_SCHEMA = closed(
    seq=COUNT,
    previous=DIGEST,
    event={"enum": list(EVENTS)},
    run_id={"anyOf": [RUN_ID, {"type": "null"}]},
    detail={"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}},
)
_SCHEMAS = {
    CAMPAIGN: CAMPAIGN_SCHEMA,
    ARMS: ARMS_SCHEMA,
    FROZEN: FROZEN_SCHEMA,
    UNBLINDED: UNBLINDED_SCHEMA,
    SETTING: SETTING_SCHEMA,
}
LEDGER_ROOT = digests.digest("ledger", b"")


def is_there(folder):
    """Whether a folder has a campaign.json, valid or not."""
    return os.path.lexists(folder / CAMPAIGN)


def require_there(folder, alternative=""):
    """Raise ``Rejected`` (E_CAMPAIGN_MISSING) unless ``is_there``; the message names an ``alternative``, too."""
    if not is_there(folder):
        found = "a folder without it" if os.path.isdir(folder) else "a file" if os.path.exists(folder) else "nothing"
        expected = f"the folder of a campaign, with {CAMPAIGN}{alternative}"
        raise Rejected("E_CAMPAIGN_MISSING", str(folder), expected, found)


def read(folder, name):
    """One of the campaign's JSON files, strictly; (value, bytes).

    Raises:
        Rejected: E_CAMPAIGN_MISSING for a campaign.json that is not there; else every problem of the file.
    """
    if name == CAMPAIGN:
        require_there(folder)
    data = files.read_once(folder / name, max_bytes=MAX_BYTES)
    value = canonical.loads_canonical(data, where=name, max_bytes=MAX_BYTES)
    raise_all(Rejected, schema.problems(value, _SCHEMAS[name], name))
    if name == CAMPAIGN:
        Contract(value["contract"])
    return value, data


def read_score(path):
    """One score file; (value, bytes)."""
    data = files.read_once(path)
    return parse_score(data, path.name), data


def parse_score(data, where):
    """A score from its bytes; raises ``Rejected`` with every problem."""
    value = canonical.loads_canonical(data, where=where)
    raise_all(Rejected, schema.problems(value, SCORE_SCHEMA, where))
    return value


def keeps_prescription(plan, contract):
    """Whether a campaign that was planned from a calibration can answer by it: phase, mark and metric are its own."""
    prescribed = plan["calibration"]
    measured = prescribed["budget_mark"] in plan["marks"]
    candidate = prescribed["primary_metric"] in contract.analysis["metrics"]
    return plan["phase"] == "confirmatory" and measured and candidate


def parse_exhibit(data, where):
    """An exhibit from its bytes; raises ``Rejected`` with every problem."""
    value = canonical.loads_canonical(data, where=where, max_bytes=MAX_BYTES)
    raise_all(Rejected, schema.problems(value, EXHIBIT_SCHEMA, where))
    marks, epochs = [one["mark"] for one in value["samples"]], {len(means) for means in value["curve"].values()}
    if marks != sorted(set(marks)) or len(epochs) > 1:
        found = f"marks {marks[:20]}, columns of {sorted(epochs)[:20]}"
        raise Rejected("E_SCHEMA_VALUE", where, "marks in ascending order, columns of one length", found)
    return value


def shown(count):
    """The positions of the evaluation images that exhibits show, of ``count``: evenly spread, ``SHOWN`` at most."""
    several = min(count, SHOWN)
    return [i * count // several for i in range(several)]


def images_to_text(images):
    """uint8 [n, 32, 32, 3] as base64, row by row."""
    return base64.b64encode(np.ascontiguousarray(images, dtype=np.uint8).tobytes()).decode()


def text_to_images(text):
    """The uint8 [n, 32, 32, 3] behind a text that a schema has held."""
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, IMAGE, IMAGE, 3)


def encode(name, value):
    """The bytes of one of the campaign's JSON files, checked against its schema before anything is written."""
    raise_all(Rejected, schema.problems(value, _SCHEMAS[name], name))
    return canonical.dumps(value)


def chain(previous, event):
    """The digest that the next event of the ledger carries as ``previous``."""
    return digests.digest("ledger", previous.encode(), canonical.dumps(event))


def ledger_heads(events):
    """Every head that a ledger of these events has had, from the empty one on."""
    heads = [LEDGER_ROOT]
    for event in events:
        heads.append(chain(heads[-1], event))
    return heads


def read_ledger(data):
    """The events of a ledger and the digest of its head.

    A last line without its newline is a write that a crash cut off: it never became an event and is left out.

    Raises:
        Rejected: E_JSON_…, E_SCHEMA_… for a malformed line, E_SCHEMA_VALUE for a broken chain.
    """
    events, head = [], LEDGER_ROOT
    for number, line in enumerate(data.split(b"\n")[:-1]):
        where = f"{LEDGER} line {number + 1}"
        event = canonical.loads_canonical(line, where=where)
        raise_all(Rejected, schema.problems(event, EVENT_SCHEMA, where))
        if event["seq"] != number or event["previous"] != head:
            raise Rejected(
                "E_SCHEMA_VALUE", where, f"event {number} after {head}", f"{event['seq']} after {event['previous']}"
            )
        head = digests.digest("ledger", head.encode(), line)  # ``chain``, of bytes that were found to be canonical
        events.append(event)
    return events, head


def ledger_events(folder):
    """The events of a campaign's ledger, the chain checked; none where there is no ledger."""
    with contextlib.suppress(FileNotFoundError):
        os.lstat(folder / LEDGER)
        return read_ledger(files.read_once(folder / LEDGER, max_bytes=MAX_BYTES))[0]
    return []


def append_events(folder, entries):
    """Append to the ledger of a campaign, under a lock that other processes wait for; returns the new head.

    The new events are chained to the last line, which is the only one that is read: an append costs the same however
    long the ledger is, and whoever reads it in full checks the whole chain. A line that a crash cut off is dropped
    first: it never became an event.

    Args:
        folder: the campaign's folder.
        entries: (event, run id or None, detail) for each event, in order.

    Raises:
        Rejected: when the last line or a new event does not have the format's form; E_FILE_KIND when the ledger can't
            be opened or is no regular file, E_FILE_WRITE when the disk did not take all bytes.
    """
    path = folder / LEDGER
    with open(files.open_regular(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        locks.take(file, path)
        last, end = _last_line(file)
        sequence, head = 0, LEDGER_ROOT
        if last:
            event = canonical.loads_canonical(last, where=f"the last line of {LEDGER}")
            raise_all(Rejected, schema.problems(event, EVENT_SCHEMA, f"the last line of {LEDGER}"))
            sequence, head = event["seq"] + 1, chain(event["previous"], event)
        lines = []
        for number, (name, run_id, detail) in enumerate(entries, start=sequence):
            event = {"seq": number, "previous": head, "event": name, "run_id": run_id, "detail": detail}
            raise_all(Rejected, schema.problems(event, EVENT_SCHEMA, LEDGER))
            lines.append(canonical.dumps(event) + b"\n")
            head = chain(head, event)
        _write_end(file.fileno(), end, b"".join(lines))
    return head


def append_event(folder, event, run_id=None, detail=None):
    """``append_events`` for one event."""
    return append_events(folder, [(event, run_id, detail or {})])


def _write_end(handle, end, data):
    """Put ``data`` behind the offset ``end`` of an open file, synced; where that fails, nothing of it stays there."""
    try:
        os.ftruncate(handle, end)
        written = 0
        while written < len(data):
            written += os.pwrite(handle, data[written:], end + written)
        os.fsync(handle)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise Rejected("E_FILE_WRITE", LEDGER, f"{len(data)} bytes more on disk", error.strerror) from None


def _last_line(file):
    """The last whole line of an open file, without its newline, and the offset behind it."""
    start, tail = file.seek(0, os.SEEK_END), b""
    size = start
    while start and tail.count(b"\n") < 2:
        step = min(start, 1 << 16)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    whole, _, torn = tail.rpartition(b"\n")
    return whole.rpartition(b"\n")[2], size - len(torn)

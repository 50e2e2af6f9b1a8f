"""Runs and campaigns made up with numpy from the shared formats alone: consistent, and never trained.

That they verify up to V3 is no accident: it is what V3 does not prove.
"""

import json
import os

import numpy as np

from vqkit.formats import campaign, canonical, dataset, digests, intervention, run, source, tensors
from vqkit.formats.knobs import KNOBS

SALT = bytes(range(32))
RUN_ID = "run-00000000000000aa"
ENVIRONMENT = {"python": "3.11.0", "device": "cpu", "threads": 1}
RESOURCES = {
    "started": "2026-01-01T00:00:00Z",
    "ended": "2026-01-01T00:00:01Z",
    "wall_seconds": 1.5,
    "training_seconds": 1.0,
    "images_per_second": 256.0,
    "peak_memory_bytes": 1024,
}


def artifact(**changes):
    """The bytes of an intervention: each keyword is a knob with its new value."""
    first = next(iter(changes), "commitment_weight")
    value = {
        "schema": "vqkit.intervention/1",
        "contract": "any",
        "decision_point": KNOBS[first].decision_point,
        "changes": [{"knob": knob, "from": KNOBS[knob].baseline, "to": to} for knob, to in changes.items()],
        "expected": {"metric": "utilization", "direction": "increase"},
        "guardrail_at_risk": None,
        "citations": [],
        "rationale": "made up",
        "previous": None,
    }
    return json.dumps(value, indent=1).encode()


def invented(contract, images, seed):
    """Evidence of a mark that no model made: mark → (state, indices, reconstruction)."""

    def evidence(mark):
        rng = np.random.default_rng([seed, mark])
        state = {
            name: rng.normal(0, 0.1, shape).astype(np.float32)
            for name, (_, shape) in run.state_layout(contract).items()
        }
        kind, shape = run.mark_layout(contract)["indices"]
        indices = rng.integers(0, contract.codes, shape).astype(kind)
        noise = rng.normal(0, 20 / (1 + mark), images.shape)
        return state, indices, (images + noise).clip(0, 255).astype(np.uint8)

    return evidence


def write_run(
    folder,
    contract,
    data,
    *,
    raw=None,
    seed=101,
    run_id=RUN_ID,
    salt=SALT,
    marks=None,
    state="complete",
    measured=None,
    evidence=None,
    edit_plan=None,
    edit_files=None,
    edit_manifest=None,
):
    """Write a run folder; the ``edit_…`` functions change a value before it is digested and written.

    ``measured`` is how many marks an unfinished run reached; ``evidence`` as ``invented`` returns it.
    """
    raw = raw or artifact(commitment_weight=1.0)
    checked = intervention.check(raw, contract)
    marks = list(contract.marks) if marks is None else marks
    counts = dataset.contract_counts(contract)
    opened = dataset.open_dataset(data, counts)
    listing = source.listing()
    plan = {
        "schema": "vqkit.plan/1",
        "run_id": run_id,
        "phase": "development",
        "contract": contract.spec,
        "dataset": {"id": opened.id, "digest": opened.digest(counts)},
        "seed": seed,
        "marks": marks,
        "device": "cpu",
        "threads": 1,
        "environment": ENVIRONMENT,
        "source": listing,
        "digests": {
            "source": source.digest(listing),
            "dataset": opened.digest(counts),
            "environment": digests.digest_json("environment", ENVIRONMENT),
            "contract": contract.digest,
            **checked.digests(salt),
        },
    }
    if edit_plan:
        edit_plan(plan)
    plan_bytes = canonical.dumps(plan)

    reached = marks if measured is None else marks[:measured]
    planned = marks[-1] * contract.steps_per_epoch
    steps = planned if state == "complete" else reached[-1] * contract.steps_per_epoch + 1 if reached else 0
    terminal = {
        "schema": "vqkit.terminal/1",
        "state": state,
        "reason": None if state == "complete" else "made up",
        "marks": reached,
        "steps": steps,
        "steps_planned": planned,
        "steps_applied": steps,
        "steps_skipped": 0,
    }
    evidence = evidence or invented(contract, opened.images["evaluation"], seed)
    contents = {}
    for mark in reached:
        weights, indices, reconstruction = evidence(mark)
        pair = {"indices": indices, "reconstruction": reconstruction}
        contents[run.mark_file(mark)] = tensors.encode(pair, run.mark_layout(contract))
        contents[run.state_file(mark)] = tensors.encode(weights, run.state_layout(contract))
    log = {name: np.full(steps, 0.5, np.float32) for name in run.STEP_COLUMNS}
    contents[run.STEPS] = tensors.encode(log, run.steps_layout(steps))
    contents[run.TERMINAL] = canonical.dumps(terminal)
    if edit_files:
        edit_files(contents)
    entries = [(name, len(data), digests.sha256_hex(data)) for name, data in contents.items()]
    manifest = run.build_manifest(plan_bytes, plan, entries, terminal, RESOURCES)
    if edit_manifest:
        edit_manifest(manifest)

    reveal = {
        "schema": "vqkit.reveal/1",
        "run_id": run_id,
        "salt": salt.hex(),
        "proposal": raw.decode(),
        "effective": checked.effective,
        "status": checked.status,
    }
    (folder / run.EVIDENCE).mkdir(parents=True)
    (folder / run.PLAN).write_bytes(plan_bytes)
    for name, data in contents.items():
        (folder / run.EVIDENCE / name).write_bytes(data)
    (folder / run.MANIFEST).write_bytes(canonical.dumps(manifest))
    (folder / "sealed").mkdir(mode=0o700)
    (folder / run.REVEAL).write_bytes(canonical.dumps(reveal))
    return folder


def write_lock(path, *contracts):
    """A lock file that binds these contracts."""
    path.write_text(json.dumps({contract.name: contract.digest for contract in contracts}))
    return path


def write_campaign(
    folder, contract, data, *, seeds=(101, 102), runs=True, edit_arms=None, edit_campaign=None, **options
):
    """Write a campaign of a reference and two arms, with all its runs; ``options`` go to every run.

    ``edit_arms`` changes the arm map before it is digested; ``edit_campaign`` the campaign before it is written.
    """
    arms = {
        "reference": artifact(),
        "beta-high": artifact(commitment_weight=1.0),
        "frozen": artifact(trainability="none"),
    }
    checked = {label: intervention.check(raw, contract) for label, raw in arms.items()}
    order = np.random.default_rng(7).permutation([f"{label} {seed}" for label in arms for seed in seeds])
    cells = [(f"run-{number:016x}", *name.split()) for number, name in enumerate(order)]
    sealed = {
        "schema": "vqkit.arms/1",
        "salt": SALT.hex(),
        "arms": [
            {
                "label": label,
                "role": "reference" if label == "reference" else "arm",
                "proposal": raw.decode(),
                "effective": checked[label].effective,
                "status": checked[label].status,
            }
            for label, raw in arms.items()
        ],
        "cells": [{"run_id": run_id, "arm": label} for run_id, label, _ in cells],
    }
    if edit_arms:
        edit_arms(sealed)
    arms_bytes = canonical.dumps(sealed)
    counts = dataset.contract_counts(contract)
    opened = dataset.open_dataset(data, counts)
    plan = {
        "schema": "vqkit.campaign/1",
        "name": "made-up",
        "phase": "development",
        "contract": contract.spec,
        "dataset": {"id": opened.id, "digest": opened.digest(counts)},
        "seeds": list(seeds),
        "marks": list(contract.marks),
        "device": "cpu",
        "threads": 1,
        "sweep": digests.digest("campaign", b"sweep"),
        "digests": {
            "source": source.digest(source.listing()),
            "environment": digests.digest_json("environment", ENVIRONMENT),
            "contract": contract.digest,
            "dataset": opened.digest(counts),
            "analysis": contract.analysis_digest,
            "arms": digests.digest("campaign", arms_bytes),
        },
        "cells": [
            {"run_id": run_id, "seed": int(seed), "intervention": checked[label].digests(SALT)["intervention"]}
            for run_id, label, seed in cells
        ],
    }
    if edit_campaign:
        edit_campaign(plan)
    (folder / "sealed").mkdir(parents=True, mode=0o700)
    (folder / campaign.ARMS).write_bytes(arms_bytes)
    (folder / campaign.CAMPAIGN).write_bytes(campaign.encode(campaign.CAMPAIGN, plan))
    campaign.append_event(folder, "planned")
    (folder / campaign.RUNS).mkdir()
    for run_id, label, seed in cells if runs else []:
        write_run(
            folder / campaign.RUNS / run_id,
            contract,
            data,
            raw=arms[label],
            seed=int(seed),
            run_id=run_id,
            evidence=invented(contract, opened.images["evaluation"], int(run_id[4:], 16)),
            **options,
        )
    return folder


def replace(path, data):
    """Overwrite a file in place, whatever its mode."""
    os.chmod(path, 0o644)
    path.write_bytes(data)

"""Synthetic campaigns: complete folders written through the formats, with effects that are planted by hand.

No run behind them exists; what a runner and an evaluator would have written is drawn from a seeded generator. Metrics
follow ``base(mark) + seed effect + arm effect(mark) + noise``, clipped to where they can lie.
"""

import numpy as np
from conftest import contract_spec

from vqkit.formats import campaign, canonical, digests, files, run
from vqkit.formats.contract import METRICS, QUALITY, Contract

SALT = b"\x07" * 32
ENVIRONMENT = {
    "python": "CPython 3.11.9", "system": "Linux x86_64", "torch": "2.14.1+cpu", "device": "cpu imagined, AVX2",
    "threads": 1, "flags": {"deterministic_algorithms": True}, "distributions": {"numpy": "2.4.0", "torch": "2.14.1"},
}  # fmt: skip
PLACES = ("source", "proposal", "environment", "plan", "evidence", "manifest")


def fake(kind, text):
    """A digest of nothing that exists."""
    return digests.digest(kind if kind in digests.KINDS else "evidence", text.encode())


def arm(
    label, effect=0.0, *, quality=0.0, knobs=None, expected=("normalized_perplexity", "increase"), status="effective"
):
    """An arm. ``effect`` is added to both code metrics, ``quality`` to psnr (ssim follows at a twentieth).

    Each is a number, or a dict from mark to number. ``knobs`` are the changed ones.
    """
    return {
        "label": label,
        "effect": effect,
        "quality": quality,
        "knobs": knobs or {},
        "expected": {"metric": expected[0], "direction": expected[1]},
        "status": status,
    }


def write_campaign(
    folder,
    arms,
    *,
    spec=None,
    seeds=8,
    sigma=0.01,
    base=0.4,
    utilization=0.1,
    states=None,
    unverified=(),
    rng=0,
    codes=None,
    phase="development",
    exhibits=False,
    calibration=None,
):
    """Write campaign.json, scores/, frozen.json and unblinded.json below ``folder``.

    Args:
        folder: an empty folder, or none yet.
        arms: as ``arm`` makes them; a reference is put in front.
        spec: the contract's plain data (quick-v1 when None).
        seeds: how many of the contract's development seeds.
        sigma: SD of a run's metric around its seed and arm (psnr: 10 sigma).
        base: normalized perplexity of the reference when trained; utilization lies ``utilization`` above it.
        states: (arm label, seed index) → state of a cell that did not complete.
        unverified: (arm label, seed index) of cells whose verification failed.
        calibration: what campaign.json records of the calibration that it was planned from.
        exhibits: whether complete runs have an exhibit, or labels of the arms whose runs have one.
    """
    contract = Contract(spec or contract_spec())
    codes = codes or contract.codes
    generator = np.random.default_rng(rng)
    everyone = [arm("reference", expected=("normalized_perplexity", "no_change"), status="reference"), *arms]
    chosen, marks = contract.seeds(phase)[:seeds], list(contract.marks)
    for one in everyone:
        one["effective"] = {**contract.baseline, **one["knobs"]}
        if not one["knobs"] and one["status"] == "effective":
            one["effective"]["commitment_weight"] = round(0.25 + 0.01 * (1 + everyone.index(one)), 4)
        one["intervention"] = digests.digest_json("intervention", one["effective"], SALT)
    cells, owners = [], {}
    for seed in chosen:
        for one in everyone:
            run_id = f"run-{fake('run_id', one['label'] + str(seed))[7:23]}"
            cells.append({"run_id": run_id, "seed": seed, "intervention": one["intervention"]})
            owners[run_id] = (one, chosen.index(seed))
    cells.sort(key=lambda cell: cell["run_id"])
    dataset = fake("dataset", "synthetic")
    plan = {
        "schema": "vqkit.campaign/1",
        "name": "synthetic",
        "phase": phase,
        "contract": contract.spec,
        "dataset": {"id": "synthetic", "digest": dataset},
        "seeds": list(chosen),
        "marks": marks,
        "device": "cpu",
        "threads": 1,
        "sweep": fake("campaign", "sweep"),
        "digests": {
            "source": fake("source", "source"),
            "environment": digests.digest_json("environment", ENVIRONMENT),
            "contract": contract.digest,
            "dataset": dataset,
            "analysis": contract.analysis_digest,
            "arms": fake("campaign", "arms"),
        },
        "cells": cells,
    }
    if calibration:
        plan["calibration"] = calibration
    folder.mkdir(parents=True, exist_ok=True)
    campaign_bytes = campaign.encode(campaign.CAMPAIGN, plan)
    files.write_once(folder / campaign.CAMPAIGN, campaign_bytes)
    shifts = generator.normal(0, 2 * sigma, (len(chosen), 2))
    entries, tally = [], {"complete": 0, "failed": 0, "missing": 0}
    (folder / campaign.SCORES).mkdir()
    (folder / campaign.EXHIBITS).mkdir()
    files.write_once(folder / campaign.SETTING, campaign.encode(campaign.SETTING, setting()))
    for cell in cells:
        one, index = owners[cell["run_id"]]
        state = (states or {}).get((one["label"], index), "complete")
        verified = (one["label"], index) not in unverified and state not in ("missing", "crashed")
        tally["complete" if state == "complete" and verified else "missing" if state == "missing" else "failed"] += 1
        score = _score(
            cell, one, state, verified, plan, contract, shifts[index], generator, sigma, base, utilization, codes
        )
        if score["marks"] and (exhibits is True or (exhibits and one["label"] in exhibits)):
            text = _exhibit(cell, plan, generator)
            files.write_once(folder / campaign.EXHIBITS / f"{cell['run_id']}.json", text)
            score["digests"]["exhibit"] = digests.digest("exhibit", text)
        data = canonical.dumps(score)
        (folder / campaign.SCORES / f"{cell['run_id']}.json").write_bytes(data)
        entries.append({"run_id": cell["run_id"], "score": digests.digest("score", data), "state": score["state"]})
    bind(folder, campaign_bytes, everyone, owners, entries, tally)
    return folder


def bind(folder, campaign_bytes, everyone, owners, entries, tally):
    """frozen.json and unblinded.json over what was written."""
    binding = digests.digest("campaign", campaign_bytes)
    bound = digests.digest("exhibit", (folder / campaign.SETTING).read_bytes())
    frozen = {"schema": "vqkit.frozen/1", "campaign": binding, "planned": len(owners), **tally}
    frozen |= {"setting": bound, "scores": entries}
    frozen_bytes = campaign.encode(campaign.FROZEN, frozen)
    files.replace(folder / campaign.FROZEN, frozen_bytes)
    unblinded = {
        "schema": "vqkit.unblinded/1",
        "campaign": binding,
        "frozen": digests.digest("score", frozen_bytes),
        "arms": [
            {
                "label": one["label"],
                "role": "reference" if one["status"] == "reference" else "arm",
                "intervention": one["intervention"],
                "effective": one["effective"],
                "status": one["status"],
                "expected": one["expected"],
                "rationale": "planted",
            }
            for one in everyone
        ],
        "cells": [{"run_id": run_id, "arm": one["label"]} for run_id, (one, _) in owners.items()],
    }
    files.replace(folder / campaign.UNBLINDED, campaign.encode(campaign.UNBLINDED, unblinded))


def pictures():
    """Eight images of 32 × 32: gradients of different colours."""
    ramp = np.linspace(0, 255, 32)
    planes = np.stack([ramp[:, None] * np.ones(32), ramp[None] * np.ones((32, 1)), np.full((32, 32), 128.0)], axis=-1)
    return np.stack([np.roll(planes, i, axis=-1) * (1 - i / 16) for i in range(8)]).astype(np.uint8)


def setting():
    """``setting.json`` as plain data."""
    images, originals = [i * 64 for i in range(8)], campaign.images_to_text(pictures())
    return {"schema": "vqkit.setting/1", "environment": ENVIRONMENT, "images": images, "originals": originals}


def _exhibit(cell, plan, generator):
    """A curve that falls, and the pictures under noise that falls with training."""
    epochs = np.arange(1, plan["marks"][-1] + 1)
    curve = {
        name: (0.2 * (i + 1) / epochs + generator.normal(0, 0.001, len(epochs))).tolist()
        for i, name in enumerate(run.STEP_COLUMNS)
    }
    samples = [
        {"mark": mark, "reconstruction": campaign.images_to_text(np.clip(
            pictures() + generator.normal(0, 60 / mark, (8, 32, 32, 3)), 0, 255))}
        for mark in plan["marks"] if mark
    ]  # fmt: skip
    value = {"schema": "vqkit.exhibit/1", "run_id": cell["run_id"], "curve": curve, "samples": samples}
    return canonical.dumps(value)


def _at(value, mark):
    return value.get(mark, 0.0) if isinstance(value, dict) else value if mark else 0.0


def _score(cell, one, state, verified, plan, contract, shift, generator, sigma, base, utilization, codes):
    tokens = contract.evaluation_count * 64
    marks = []
    for mark in plan["marks"] if state == "complete" else []:
        grown = base * (0.2 + 0.8 * mark / plan["marks"][-1]) if mark else 0.05
        noise = generator.normal(0, sigma, 4)
        usage = float(np.clip(grown + _at(one["effect"], mark) + shift[0] + noise[0], 1 / codes, 1.0))
        used = float(np.clip(grown + utilization + _at(one["effect"], mark) + shift[1] + noise[1], 1 / codes, 1.0))
        psnr = float(14 + 4 * mark / plan["marks"][-1] + _at(one["quality"], mark) + 10 * noise[2])
        ssim = float(0.3 + 0.04 * (psnr - 14) + noise[3] / 10)
        floor = {"psnr": psnr, "ssim": ssim, "mse": 10 ** (-psnr / 10)}
        rank = np.arange(1, codes + 1)
        share = rank ** -(1.5 - usage)
        marks.append(
            {
                "mark": mark,
                "tokens": tokens,
                "perplexity": usage * codes,
                "normalized_perplexity": usage,
                "utilization": used,
                "mse": 10 ** (-psnr / 10),
                "psnr": psnr,
                "ssim": ssim,
                "counts": [int(count) for count in np.round(tokens * share / share.sum())],
                "flags": [],
                "guardrails": {
                    guard["metric"]: {
                        "limit": guard["limit"],
                        "status": "ok"
                        if QUALITY[guard["metric"]] * (floor[guard["metric"]] - guard["limit"]) >= 0
                        else "broken",
                    }
                    for guard in contract.analysis["guardrails"]
                },
            }
        )
    measured = state not in ("missing", "crashed")
    checks = [
        {
            "id": f"V{level}.check_{i}",
            "level": f"V{level}",
            "status": "passed",
            "expected": "as bound",
            "found": "the same",
        }
        for level in range(4)
        for i in range(4)
    ]
    return {
        "schema": "vqkit.score/1",
        "run_id": cell["run_id"],
        "seed": cell["seed"] if measured else None,
        "state": state if verified or state != "complete" else "unverified",
        "verification": {
            "status": "passed" if verified else "failed",
            "level": "V3" if verified else "none",
            "checks": checks if measured else [],
            "not_proven": ["that the training happened"],
        },
        "digests": {
            **{kind: fake("evidence", kind + cell["run_id"]) for kind in PLACES},
            "source": plan["digests"]["source"],
            "environment": plan["digests"]["environment"],
            "contract": plan["digests"]["contract"],
            "dataset": plan["digests"]["dataset"],
            "intervention": cell["intervention"],
        }
        if measured
        else {},
        "resources": {"wall_seconds": 30.0 + 0.5 * (cell["seed"] % 7), "training_seconds": 28.0} if measured else None,
        "marks": marks if verified else [],
    }


assert set(METRICS) == {"normalized_perplexity", "utilization"}  # what ``_score`` draws

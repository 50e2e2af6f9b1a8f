"""The results table: one row a cell and mark, written as results.csv and read back to the last digit.

Shapes: A arms (the reference first), T marks, S seeds.
"""

import io
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vqkit.formats import campaign, knobs
from vqkit.formats.contract import METRICS, QUALITY

MEASURES = ("tokens", "perplexity", *METRICS, *QUALITY)
SCORE_DIGESTS = (
    "source", "intervention", "proposal", "dataset", "environment", "contract", "plan", "evidence", "manifest",
    "exhibit",
)  # fmt: skip
FAILED = tuple(state for state in campaign.OUTCOMES if state not in ("complete", "missing"))


@dataclass(frozen=True)
class Arrays:
    """The table as arrays: metric → values [A, T, S] with intention to treat, imputed [A, S], run ids [A, S]."""

    labels: tuple
    values: dict
    imputed: np.ndarray
    run_ids: np.ndarray


def arrays(table, marks, seeds, intention_to_treat):
    """The results table, in the order in which ``load`` makes it, as arrays.

    A cell that did not complete holds the contract's intention-to-treat value, NaN where the contract has none.
    """
    shape = -1, len(seeds), len(marks)
    imputed = table["imputed"].to_numpy().reshape(shape)
    values = {}
    for metric in (*METRICS, *QUALITY):
        measured = table[metric].to_numpy(dtype=np.float64, na_value=np.nan).reshape(shape)
        values[metric] = np.where(imputed, intention_to_treat.get(metric, np.nan), measured).transpose(0, 2, 1)
    labels = tuple(table["arm"].to_numpy().reshape(shape)[:, 0, 0])
    return Arrays(labels, values, imputed[:, :, 0], table["run_id"].to_numpy().reshape(shape)[:, :, 0])


def write(table):
    """results.csv; floats in the shortest form that reads back to the same number."""
    return table.to_csv(index=False, lineterminator="\n").encode()


def read(data):
    """The table in results.csv, to the last digit; only an empty field is null, whatever an arm is called."""
    table = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)
    for name in MEASURES:
        table[name] = [float(text) if text else np.nan for text in table[name]]
    return table.assign(
        seed=table["seed"].astype(int), mark=table["mark"].astype(int), imputed=table["imputed"] == "True"
    )


def columns(contract):
    """The columns of the results table, in order."""
    guardrails = [f"guardrail_{guard['metric']}" for guard in contract.analysis["guardrails"]]
    return [
        "campaign", "contract", "dataset", "device", "run_id", "arm", "role", *knobs.KNOBS, "seed", "mark", "state",
        "verification_status",
        "verification_level", "manipulation_status", *MEASURES, *guardrails, "imputed", "digest_campaign",
        "digest_score", *(f"digest_{name}" for name in SCORE_DIGESTS),
    ]  # fmt: skip


def usable(score):
    """Whether a run counts with what was measured: it completed and its verification passed."""
    return score is not None and score["state"] == "complete" and score["verification"]["status"] == "passed"


def state_of(score):
    """A cell's state in every table: no score is ``missing``; complete without a passed verification is no success."""
    if score is None:
        return "missing"
    return "unverified" if score["state"] == "complete" and not usable(score) else score["state"]


def rows(plan, contract, found, arm, cell, marks, score, digest):
    """The rows of one cell, one a mark; what was not measured stays null."""
    state = state_of(score)
    measured = {entry["mark"]: entry for entry in score["marks"]} if score else {}
    known = {f"digest_{name}": score["digests"].get(name) if score else None for name in SCORE_DIGESTS}
    for mark in marks:
        entry = measured.get(mark, {})
        guardrails = {
            f"guardrail_{guard['metric']}": entry.get("guardrails", {}).get(guard["metric"], {}).get("status")
            for guard in contract.analysis["guardrails"]
        }
        yield {
            "campaign": plan["name"],
            "contract": contract.name,
            "dataset": plan["dataset"]["id"],
            "device": plan["device"],
            "run_id": cell["run_id"],
            "arm": arm["label"],
            "role": arm["role"],
            **arm["effective"],
            "seed": cell["seed"],
            "mark": mark,
            "state": state,
            "verification_status": score["verification"]["status"] if score else "not_run",
            "verification_level": score["verification"]["level"] if score else "none",
            "manipulation_status": arm["status"],
            **{name: entry.get(name) for name in MEASURES},
            **guardrails,
            "imputed": not usable(score),
            "digest_campaign": found["campaign"],
            "digest_score": digest,
            **known,
        }

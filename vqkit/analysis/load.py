"""From a campaign folder to one tidy table, by digests, and to arrays with intention to treat.

Read are campaign.json, frozen.json, unblinded.json, setting.json and scores/*.json, nothing else. Each file must be the
one that the file before it names: the plan's digest in frozen.json and unblinded.json, the digests of setting and
scores in frozen.json, the digest of frozen.json in unblinded.json.

Shapes: A arms (the reference first), T marks, S seeds.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vqkit.analysis import bindings, shown
from vqkit.analysis.results import FAILED, arrays, columns, rows, state_of, usable
from vqkit.errors import Incomplete, Problem, Refused, raise_all
from vqkit.formats import campaign, digests, files
from vqkit.formats.contract import Contract


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A campaign as analysed.

    Attributes:
        plan, contract: campaign.json and the contract that it embeds.
        digests: of campaign.json, frozen.json and unblinded.json.
        arms: the arms of unblinded.json, the reference first, the others in their order there.
        seeds, marks: ascending.
        table: one row a cell and mark; columns as documented in ``columns``.
        values: metric → float64 [A, T, S], cells that did not complete hold the contract's intention-to-treat value.
        imputed: bool [A, S], true where that value stands.
        verified: bool [A, S], the run's verification passed.
        tally: planned, complete, failed, missing; planned is the sum of the others.
        seconds: wall seconds of each run that reported them.
        device_class: what the runs trained on, None where no run was verified.
    """

    plan: dict
    contract: Contract
    digests: dict
    arms: tuple
    seeds: tuple
    marks: tuple
    table: pd.DataFrame
    values: dict
    imputed: np.ndarray
    verified: np.ndarray
    tally: dict
    seconds: tuple
    device_class: str | None

    @property
    def labels(self):
        """The arms' labels, the reference first."""
        return tuple(arm["label"] for arm in self.arms)


def load(folder):
    """Read a campaign that was scored, frozen and unblinded.

    Raises:
        Rejected: E_CAMPAIGN_MISSING where there is no campaign; a file is malformed.
        Incomplete: E_STAGE_MISSING where a stage has not written its file yet.
        Refused: E_ANALYSIS_PLAN, E_ANALYSIS_BINDING, E_ANALYSIS_INPUT with every fault found.
    """
    plan, plan_bytes = campaign.read(folder, campaign.CAMPAIGN)
    stages = {campaign.FROZEN: "score it", campaign.UNBLINDED: "unblind it"}
    absent = [
        Problem(code="E_STAGE_MISSING", where=name, expected=f"the file ({how} first)", found="nothing")
        for name, how in stages.items()
        if not (folder / name).exists()
    ]
    raise_all(Incomplete, absent)
    frozen, frozen_bytes = campaign.read(folder, campaign.FROZEN)
    unblinded, unblinded_bytes = campaign.read(folder, campaign.UNBLINDED)
    found = {
        "campaign": digests.digest("campaign", plan_bytes),
        "frozen": digests.digest("score", frozen_bytes),
        "unblinded": digests.digest("campaign", unblinded_bytes),
    }
    contract = Contract(plan["contract"])
    problems = [*bindings.plan_problems(plan, contract), *bindings.binding_problems(plan, frozen, unblinded, found)]
    raise_all(Refused, problems)
    scores, problems = _read_scores(folder, frozen)
    problems += bindings.score_problems(plan, scores)
    raise_all(Refused, problems)
    setting = shown.read_setting(folder, frozen["setting"], plan["digests"]["environment"])
    device_class = (setting["environment"] or {}).get("device")
    return _assemble(plan, contract, found, unblinded, scores, device_class)


def _read_scores(folder, frozen):
    """Every score that frozen.json names, by run id, with its digest; faults beside them."""
    scores, problems = {}, []
    for entry in frozen["scores"]:
        path = folder / campaign.SCORES / f"{entry['run_id']}.json"
        if not path.exists():
            problems.append(Problem(code="E_ANALYSIS_BINDING", where=path.name, expected="the score", found="nothing"))
            continue
        data = files.read_once(path)
        digest = digests.digest("score", data)
        if digest != entry["score"]:
            problems.append(Problem(code="E_ANALYSIS_BINDING", where=path.name, expected=entry["score"], found=digest))
            continue
        score = campaign.parse_score(data, path.name)
        scores[entry["run_id"]] = (score, digest)
        del score["verification"]["checks"]  # the bulk of a score, which no row of the table holds
        for measured in score["marks"]:
            del measured["counts"]
        for key in ("run_id", "state"):
            if score[key] != entry[key]:
                where = f"{path.name}.{key}"
                problems.append(Problem(code="E_ANALYSIS_INPUT", where=where, expected=entry[key], found=score[key]))
    return scores, problems


def _assemble(plan, contract, found, unblinded, scores, device_class):
    arms = sorted(unblinded["arms"], key=lambda arm: arm["role"] != "reference")
    position = {arm["label"]: i for i, arm in enumerate(arms)}
    seeds, marks = tuple(sorted(plan["seeds"])), tuple(sorted(plan["marks"]))
    owner = {cell["run_id"]: position[cell["arm"]] for cell in unblinded["cells"]}
    lines, seconds, states = [], [], []
    verified = np.zeros((len(arms), len(seeds)), dtype=bool)
    for cell in sorted(plan["cells"], key=lambda cell: (owner[cell["run_id"]], cell["seed"])):
        arm, seed = owner[cell["run_id"]], seeds.index(cell["seed"])
        score, digest = scores.get(cell["run_id"], (None, None))
        verified[arm, seed] = score is not None and score["verification"]["status"] == "passed"
        states.append(state_of(score))
        wall = (score["resources"] or {}).get("wall_seconds") if usable(score) else None
        if type(wall) in (int, float):
            seconds.append(float(wall))
        lines += rows(plan, contract, found, arms[arm], cell, marks, score, digest)
    table = pd.DataFrame(lines, columns=columns(contract)).astype({"tokens": "Int64", "imputed": "bool"})
    tally = {
        "planned": len(states),
        "complete": states.count("complete"),
        "failed": sum(state in FAILED for state in states),
        "missing": states.count("missing"),
    }
    filled = arrays(table, marks, seeds, contract.analysis["intention_to_treat"])
    return Loaded(
        plan=plan, contract=contract, digests=found, arms=tuple(arms), seeds=seeds, marks=marks, table=table,
        values=filled.values, imputed=filled.imputed, verified=verified, tally=tally, seconds=tuple(seconds),
        device_class=device_class,
    )  # fmt: skip

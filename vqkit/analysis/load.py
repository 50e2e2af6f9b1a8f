"""From a campaign folder to one tidy table, by digests, and to arrays with intention to treat.

Read are campaign.json, frozen.json, unblinded.json and scores/*.json, nothing else. Each file must be the one that the
file before it names: the plan's digest in frozen.json and unblinded.json, each score's digest in frozen.json, the
digest of frozen.json in unblinded.json. All faults are collected before anything is refused.

Shapes: A arms (the reference first), T marks, S seeds.
"""

import io
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vqkit.errors import Incomplete, Problem, Refused, raise_all
from vqkit.formats import campaign, digests, files, knobs
from vqkit.formats.contract import METRICS, QUALITY, Contract

MEASURES = ("tokens", "perplexity", *METRICS, *QUALITY)
SCORE_DIGESTS = (
    "source",
    "intervention",
    "proposal",
    "dataset",
    "environment",
    "contract",
    "plan",
    "evidence",
    "manifest",
)
SHARED_DIGESTS = ("source", "dataset", "environment", "contract")  # the same for every run of a campaign
FAILED = tuple(state for state in campaign.OUTCOMES if state not in ("complete", "missing"))


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

    @property
    def labels(self):
        """The arms' labels, the reference first."""
        return tuple(arm["label"] for arm in self.arms)


def load(folder):
    """Read a campaign that was scored, frozen and unblinded.

    Raises:
        Incomplete: E_STAGE_MISSING where a stage has not written its file yet.
        Rejected: a file is malformed.
        Refused: E_ANALYSIS_PLAN, E_ANALYSIS_BINDING, E_ANALYSIS_INPUT with every fault found.
    """
    stages = {campaign.CAMPAIGN: "plan the campaign", campaign.FROZEN: "score it", campaign.UNBLINDED: "unblind it"}
    absent = [
        Problem(code="E_STAGE_MISSING", where=name, expected=f"the file ({how} first)", found="nothing")
        for name, how in stages.items()
        if not (folder / name).exists()
    ]
    raise_all(Incomplete, absent)
    plan, plan_bytes = campaign.read(folder, campaign.CAMPAIGN)
    frozen, frozen_bytes = campaign.read(folder, campaign.FROZEN)
    unblinded, unblinded_bytes = campaign.read(folder, campaign.UNBLINDED)
    found = {
        "campaign": digests.digest("campaign", plan_bytes),
        "frozen": digests.digest("score", frozen_bytes),
        "unblinded": digests.digest("score", unblinded_bytes),
    }
    contract = Contract(plan["contract"])
    problems = [*_plan_problems(plan, contract), *_binding_problems(plan, frozen, unblinded, found)]
    raise_all(Refused, problems)
    scores, problems = _read_scores(folder, frozen)
    problems += _score_problems(plan, scores)
    raise_all(Refused, problems)
    return _assemble(plan, contract, found, unblinded, scores)


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


def write_table(table):
    """results.csv; floats in the shortest form that reads back to the same number."""
    return table.to_csv(index=False, lineterminator="\n").encode()


def read_table(data):
    """The table in results.csv, to the last digit; only an empty field is null, whatever an arm is called."""
    table = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)
    for name in MEASURES:
        table[name] = [float(text) if text else np.nan for text in table[name]]
    return table.assign(
        seed=table["seed"].astype(int), mark=table["mark"].astype(int), imputed=table["imputed"] == "True"
    )


def read_counts(folder, table, arm, mark):
    """Code counts of an arm's completed runs at a mark: int64 [runs, K], from the scores that the table is made of.

    Raises:
        Refused: E_ANALYSIS_BINDING where a score is not the one that the table names.
    """
    rows = []
    mine = table[(table["arm"] == arm) & (table["mark"] == mark) & ~table["imputed"]]
    for run_id, bound in zip(mine["run_id"], mine["digest_score"], strict=True):
        path = folder / campaign.SCORES / f"{run_id}.json"
        score, data = campaign.read_score(path)
        found = digests.digest("score", data)
        if found != bound:
            raise Refused("E_ANALYSIS_BINDING", path.name, bound, found)
        rows += [entry["counts"] for entry in score["marks"] if entry["mark"] == mark]
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1)


def columns(contract):
    """The columns of the results table, in order."""
    guardrails = [f"guardrail_{guard['metric']}" for guard in contract.analysis["guardrails"]]
    return [
        "campaign", "contract", "dataset", "device", "run_id", "arm", "role", *knobs.KNOBS, "seed", "mark", "state",
        "verification_status",
        "verification_level", "manipulation_status", *MEASURES, *guardrails, "imputed", "digest_campaign",
        "digest_score", *(f"digest_{name}" for name in SCORE_DIGESTS),
    ]  # fmt: skip


def _plan_problems(plan, contract):
    """The campaign against the contract that it embeds: the analysis was fixed before the data."""
    for name, code, actual in (
        ("contract", "E_ANALYSIS_BINDING", contract.digest),
        ("analysis", "E_ANALYSIS_PLAN", contract.analysis_digest),
        ("dataset", "E_ANALYSIS_BINDING", plan["dataset"]["digest"]),
    ):
        if plan["digests"][name] != actual:
            where = f"{campaign.CAMPAIGN}.digests.{name}"
            yield Problem(code=code, where=where, expected=actual, found=plan["digests"][name])
    if not any(plan["marks"]):
        where, expected = f"{campaign.CAMPAIGN}.marks", "a mark after training has begun"
        yield Problem(code="E_ANALYSIS_INPUT", where=where, expected=expected, found=str(plan["marks"]))


def _binding_problems(plan, frozen, unblinded, found):
    """Each file against the digests that name it, and the lists of cells and arms against each other."""

    def broken(where, expected, actual, code="E_ANALYSIS_BINDING"):
        return Problem(code=code, where=where, expected=str(expected), found=str(actual))

    for name, value, expected in (
        (f"{campaign.FROZEN}.campaign", frozen["campaign"], found["campaign"]),
        (f"{campaign.UNBLINDED}.campaign", unblinded["campaign"], found["campaign"]),
        (f"{campaign.UNBLINDED}.frozen", unblinded["frozen"], found["frozen"]),
    ):
        if value != expected:
            yield broken(name, expected, value)
    planned = [cell["run_id"] for cell in plan["cells"]]
    known = set(planned)
    scored = [entry["run_id"] for entry in frozen["scores"]]
    owned = [cell["run_id"] for cell in unblinded["cells"]]
    for where, ids in ((campaign.CAMPAIGN, planned), (campaign.FROZEN, scored), (campaign.UNBLINDED, owned)):
        if len(set(ids)) != len(ids):
            yield broken(f"{where} cells", "each run id once", f"{len(ids) - len(set(ids))} again", "E_ANALYSIS_INPUT")
    for where, stray in ((campaign.FROZEN, set(scored) - known), (campaign.UNBLINDED, set(owned) ^ known)):
        if stray:
            yield broken(f"{where} cells", "the cells of the plan", ", ".join(sorted(stray)[:3]), "E_ANALYSIS_INPUT")
    parts = frozen["complete"], frozen["failed"], frozen["missing"]
    if frozen["planned"] != len(planned) or sum(parts) != frozen["planned"]:
        sums = f"{frozen['planned']} = {' + '.join(map(str, parts))}"
        yield broken(campaign.FROZEN, f"{len(planned)} planned = complete + failed + missing", sums, "E_ANALYSIS_INPUT")
    yield from _arm_problems(plan, unblinded, broken)


def _arm_problems(plan, unblinded, broken):
    """One reference, each arm exactly once on each seed, each cell's intervention that of its arm."""
    labels = [arm["label"] for arm in unblinded["arms"]]
    roles = [arm["role"] for arm in unblinded["arms"]]
    where = f"{campaign.UNBLINDED} arms"
    if len(set(labels)) != len(labels) or roles.count("reference") != 1 or len(labels) < 2:
        found = f"{len(labels)} arms, {roles.count('reference')} reference"
        yield broken(where, "one reference and other arms of different labels", found, "E_ANALYSIS_INPUT")
        return
    interventions = {arm["label"]: arm["intervention"] for arm in unblinded["arms"]}
    owner = {cell["run_id"]: cell["arm"] for cell in unblinded["cells"]}
    grid = []
    for cell in plan["cells"]:
        label = owner.get(cell["run_id"])
        grid.append((label, cell["seed"]))
        if label is not None and interventions.get(label) != cell["intervention"]:
            yield broken(f"{campaign.UNBLINDED} {cell['run_id']}", cell["intervention"], interventions.get(label))
    if sorted(grid, key=str) != sorted(((label, seed) for label in labels for seed in plan["seeds"]), key=str):
        expected = f"{len(labels)} arms × {len(plan['seeds'])} seeds, each pair once"
        yield broken(where, expected, f"{len(set(grid))} pairs in {len(grid)} cells", "E_ANALYSIS_INPUT")


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
        for key in ("run_id", "state"):
            if score[key] != entry[key]:
                where = f"{path.name}.{key}"
                problems.append(Problem(code="E_ANALYSIS_INPUT", where=where, expected=entry[key], found=score[key]))
    return scores, problems


def _score_problems(plan, scores):
    """A complete, verified score must belong to this campaign's cell and hold every mark once."""
    cells = {cell["run_id"]: cell for cell in plan["cells"]}
    for run_id, (score, _) in scores.items():
        if not usable(score):
            continue
        expected = {name: plan["digests"][name] for name in SHARED_DIGESTS}
        expected["intervention"] = cells[run_id]["intervention"]
        for name, digest in expected.items():
            found = score["digests"].get(name, "nothing")
            if found != digest:
                where = f"{run_id}.json.digests.{name}"
                yield Problem(code="E_ANALYSIS_INPUT", where=where, expected=digest, found=found)
        if score["seed"] != cells[run_id]["seed"]:
            where, wanted = f"{run_id}.json.seed", str(cells[run_id]["seed"])
            yield Problem(code="E_ANALYSIS_INPUT", where=where, expected=wanted, found=str(score["seed"]))
        marks = [entry["mark"] for entry in score["marks"]]
        if sorted(marks) != sorted(plan["marks"]):
            where, wanted = f"{run_id}.json.marks", str(sorted(plan["marks"]))
            yield Problem(code="E_ANALYSIS_INPUT", where=where, expected=wanted, found=str(marks))


def usable(score):
    """Whether a run counts with what was measured: it completed and its verification passed."""
    return score is not None and score["state"] == "complete" and score["verification"]["status"] == "passed"


def _assemble(plan, contract, found, unblinded, scores):
    arms = sorted(unblinded["arms"], key=lambda arm: arm["role"] != "reference")
    position = {arm["label"]: i for i, arm in enumerate(arms)}
    seeds, marks = tuple(sorted(plan["seeds"])), tuple(sorted(plan["marks"]))
    owner = {cell["run_id"]: position[cell["arm"]] for cell in unblinded["cells"]}
    owner = {cell["run_id"]: position[cell["arm"]] for cell in unblinded["cells"]}
    rows, seconds, states = [], [], []
    verified = np.zeros((len(arms), len(seeds)), dtype=bool)
    for cell in sorted(plan["cells"], key=lambda cell: (owner[cell["run_id"]], cell["seed"])):
        arm, seed = owner[cell["run_id"]], seeds.index(cell["seed"])
        score, digest = scores.get(cell["run_id"], (None, None))
        verified[arm, seed] = score is not None and score["verification"]["status"] == "passed"
        states.append(_state(score))
        wall = (score["resources"] or {}).get("wall_seconds") if usable(score) else None
        if type(wall) in (int, float):
            seconds.append(float(wall))
        rows += _rows(plan, contract, found, arms[arm], cell, marks, score, digest)
    table = pd.DataFrame(rows, columns=columns(contract)).astype({"tokens": "Int64", "imputed": "bool"})
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
    )  # fmt: skip


def _state(score):
    """A cell's state in every table: no score is ``missing``; complete without a passed verification is no success."""
    if score is None:
        return "missing"
    return "unverified" if score["state"] == "complete" and not usable(score) else score["state"]


def _rows(plan, contract, found, arm, cell, marks, score, digest):
    """The rows of one cell, one a mark; what was not measured stays null."""
    state = _state(score)
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

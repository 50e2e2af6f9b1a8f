"""What must agree before anything is analysed: each file with the digest that names it, lists with each other.

Every function yields problems; nothing is refused before all of them are known.
"""

from vqkit.analysis.results import usable
from vqkit.errors import Problem
from vqkit.formats import campaign

SHARED_DIGESTS = ("source", "dataset", "environment", "contract")  # the same for every run of a campaign


def plan_problems(plan, contract):
    """The campaign against the contract that it embeds: the analysis was fixed before the data."""
    for name, code, actual in (
        ("contract", "E_ANALYSIS_BINDING", contract.digest),
        ("analysis", "E_ANALYSIS_PLAN", contract.analysis_digest),
        ("dataset", "E_ANALYSIS_BINDING", plan["dataset"]["digest"]),
    ):
        if plan["digests"][name] != actual:
            where = f"{campaign.CAMPAIGN}.digests.{name}"
            yield Problem(code=code, where=where, expected=actual, found=plan["digests"][name])
    prescribed = plan.get("calibration")
    if prescribed and not campaign.keeps_prescription(plan, contract):
        where, expected = f"{campaign.CAMPAIGN}.calibration", "a mark and a metric of a confirmatory campaign"
        yield Problem(code="E_ANALYSIS_INPUT", where=where, expected=expected, found=str(prescribed))
    if not any(plan["marks"]):
        where, expected = f"{campaign.CAMPAIGN}.marks", "a mark after training has begun"
        yield Problem(code="E_ANALYSIS_INPUT", where=where, expected=expected, found=str(plan["marks"]))


def binding_problems(plan, frozen, unblinded, found):
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


def score_problems(plan, scores):
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

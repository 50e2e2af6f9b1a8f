"""Attacks on a campaign: its cells, its scores, its ledger and what is sealed."""

import json
import os
import shutil

import fabricate
from table import call, edit_json, holds, on_campaign, overwrite, reseal

from evaluator.__main__ import main as evaluator
from evaluator.score import score_campaign
from evaluator.unblind import unblind_campaign
from vqkit.formats import campaign, canonical, digests, intervention, run


@on_campaign("one evidence under two seeds", "V2.duplicate")
def two_seeds(stage):
    first = stage.cells()[0]
    number = next(i for i, cell in enumerate(stage.cells()) if cell["seed"] != first["seed"])
    copy, original = stage.cell(0), stage.cell(number)
    shutil.rmtree(copy / run.EVIDENCE)
    shutil.copytree(original / run.EVIDENCE, copy / run.EVIDENCE)
    reseal(copy)


@on_campaign("two runs swap their cells", "V2.campaign")
def swapped_cells(stage):
    first, second = stage.cell(0), stage.cell(1)
    first.rename(stage.root / "swap")
    second.rename(first)
    (stage.root / "swap").rename(second)


@on_campaign("a cell that ran with other threads than planned", "V2.campaign")
def other_threads(stage):
    reseal(stage.cell(), plan=lambda plan: plan.update(threads=8))


@on_campaign("a cell that ran another intervention than planned", "V2.campaign")
def other_arm(stage):
    reseal(stage.cell(), plan=lambda plan: plan["digests"].update(intervention=digests.digest("intervention", b"x")))


@on_campaign("a cell whose evidence was changed", f"V1.content.{run.mark_file(1)}")
def changed_cell(stage):
    overwrite(stage.cell() / run.EVIDENCE / run.mark_file(1), lambda data: data[:-1] + bytes([data[-1] ^ 1]))


def _planned(name, edit):
    @call(name, "E_VERIFY", "evaluator")
    def apply(stage):
        edit_json(stage.campaign / campaign.CAMPAIGN, edit)
        score_campaign(stage.campaign, stage.held)


_planned("a campaign that lists a cell twice", lambda plan: plan["cells"].append({**plan["cells"][0]}))
_planned("evaluation seeds in a development campaign", lambda plan: plan["seeds"].append(201))
_planned("edited thresholds in the campaign", lambda plan: plan["contract"]["analysis"].update(alpha=0.5))


@call("a lost cell is left out in silence", "E_CAMPAIGN_INCOMPLETE", "evaluator")
def silent_loss(stage):
    shutil.rmtree(stage.cell())
    before = set(stage.campaign.iterdir())
    try:
        score_campaign(stage.campaign, stage.held)
    finally:
        made = {path.name for path in set(stage.campaign.iterdir()) - before}
        assert made == {campaign.SCORES}
        shutil.rmtree(stage.campaign / campaign.SCORES)


@call("a run that appears after the scores were frozen without it", "E_FROZEN", "evaluator")
def late_run(stage):
    cell = stage.cell()
    cell.rename(stage.root / "late")
    score_campaign(stage.campaign, stage.held, final=True)
    (stage.root / "late").rename(cell)
    _then(stage, lambda: score_campaign(stage.campaign, stage.held))


@call("early unblinding", "E_NOT_FROZEN", "evaluator")
def early(stage):
    unblind_campaign(stage.campaign)


def _then(stage, step):
    """Run ``step``; honest scores from before it don't count as the attack's."""
    try:
        step()
    finally:
        assert not (stage.campaign / campaign.UNBLINDED).exists()
        shutil.rmtree(stage.campaign / campaign.SCORES, ignore_errors=True)


def _better(score):
    score["marks"][0]["psnr"] += 1


@call("a score is edited, then scored again", "E_VERIFY", "evaluator")
def edited_score(stage):
    score_campaign(stage.campaign, stage.held)
    edit_json(next((stage.campaign / campaign.SCORES).iterdir()), _better)
    _then(stage, lambda: score_campaign(stage.campaign, stage.held))


@call("another image in an exhibit, then scored again", "E_VERIFY", "evaluator")
def edited_exhibit(stage):
    score_campaign(stage.campaign, stage.held)
    edit_json(next((stage.campaign / campaign.EXHIBITS).iterdir()), lambda one: one["samples"][0].update(mark=7))
    _then(stage, lambda: score_campaign(stage.campaign, stage.held))


@call("a score is edited before unblinding", "E_NOT_FROZEN", "evaluator")
def edited_frozen_score(stage):
    score_campaign(stage.campaign, stage.held)
    edit_json(next((stage.campaign / campaign.SCORES).iterdir()), _better)
    _then(stage, lambda: unblind_campaign(stage.campaign))


@call("a score is removed before unblinding", "E_NOT_FROZEN", "evaluator")
def removed_score(stage):
    score_campaign(stage.campaign, stage.held)
    next((stage.campaign / campaign.SCORES).iterdir()).unlink()
    _then(stage, lambda: unblind_campaign(stage.campaign))


@call("the frozen scores of another campaign", "E_NOT_FROZEN", "evaluator")
def others_scores(stage):
    score_campaign(stage.campaign, stage.held)
    other = digests.digest("campaign", b"other")
    edit_json(stage.campaign / campaign.FROZEN, lambda frozen: frozen.update(campaign=other))
    _then(stage, lambda: unblind_campaign(stage.campaign))


@call("two arms swap their labels after scoring", "E_VERIFY", "evaluator")
def relabelled(stage):
    score_campaign(stage.campaign, stage.held)

    def swap(arms):
        first, second = arms["cells"][0], next(c for c in arms["cells"] if c["arm"] != arms["cells"][0]["arm"])
        first["arm"], second["arm"] = second["arm"], first["arm"]

    edit_json(stage.campaign / campaign.ARMS, swap)
    _then(stage, lambda: unblind_campaign(stage.campaign))


@call("a cell's reveal names other knobs", "E_VERIFY", "evaluator")
def other_reveal(stage):
    score_campaign(stage.campaign, stage.held)
    edit_json(stage.cell() / run.REVEAL, lambda reveal: reveal["effective"].update(commitment_weight=9.0))
    _then(stage, lambda: unblind_campaign(stage.campaign))


@call("a reveal is removed", "E_VERIFY", "evaluator")
def no_reveal(stage):
    score_campaign(stage.campaign, stage.held)
    (stage.cell() / run.REVEAL).unlink()
    _then(stage, lambda: unblind_campaign(stage.campaign))


@call("a line of the ledger is changed", "E_SCHEMA_VALUE", "evaluator")
def edited_ledger(stage):
    campaign.append_events(stage.campaign, [("failed", stage.cells()[0]["run_id"], {"outcome": "timeout"})])
    overwrite(stage.campaign / campaign.LEDGER, lambda data: data.replace(b'"planned"', b'"claimed"'))
    score_campaign(stage.campaign, stage.held)


@call("the ledger is rewritten from its start", "E_VERIFY", "evaluator")
def rewritten_ledger(stage):
    head = campaign.ledger_heads(campaign.ledger_events(stage.campaign))[-1]
    (stage.campaign / campaign.LEDGER).unlink()
    campaign.append_events(stage.campaign, [("planned", None, {"note": "again"})])
    evaluator(["digest", str(stage.campaign), "--expect", head])


@call("a pipe in the place of the ledger", "E_FILE_KIND", "evaluator")
def piped_ledger(stage):
    (stage.campaign / campaign.LEDGER).unlink()
    os.mkfifo(stage.campaign / campaign.LEDGER)
    score_campaign(stage.campaign, stage.held)


@call("the folder of the scores is a link to elsewhere", "E_VERIFY", "evaluator")
def linked_scores(stage):
    (stage.root / "elsewhere").mkdir()
    (stage.campaign / campaign.SCORES).symlink_to(stage.root / "elsewhere")
    score_campaign(stage.campaign, stage.held)


@call("the folder of the runs is a link to elsewhere", "E_VERIFY", "evaluator")
def linked_runs(stage):
    shutil.move(stage.campaign / campaign.RUNS, stage.root / "elsewhere")
    (stage.campaign / campaign.RUNS).symlink_to(stage.root / "elsewhere")
    score_campaign(stage.campaign, stage.held)


@holds("guess the arm of a cell from the digests of known artifacts", "digests are salted, the salt is sealed", "V2")
def guessed_arm(stage):
    planned = {cell["intervention"] for cell in stage.cells()}
    for raw in (
        fabricate.artifact(),
        fabricate.artifact(commitment_weight=1.0),
        fabricate.artifact(trainability="none"),
    ):
        checked = intervention.check(raw, stage.contract)
        for salt in (b"", bytes(32)):
            assert checked.digests(salt)["intervention"] not in planned
        assert checked.digests(fabricate.SALT)["intervention"] in planned


@holds("learn the arm from names, sizes or shapes of evidence", "every arm leaves the same", "V1")
def arm_by_sizes(stage):
    seen = set()
    for number in range(len(stage.cells())):
        folder = stage.cell(number) / run.EVIDENCE
        tensor_files = [path for path in folder.iterdir() if path.suffix == ".safetensors"]
        seen.add(tuple(sorted((path.name, path.stat().st_size) for path in tensor_files)))
    assert len(seen) == 1


@holds("a diverged run disappears from the denominator", "planned = complete + failed + missing", "evaluator")
def denominator(stage):
    run_id = stage.cells()[0]["run_id"]
    (stage.cell() / run.MANIFEST).unlink()
    campaign.append_events(stage.campaign, [("failed", run_id, {"outcome": "crashed"})])
    frozen, _ = score_campaign(stage.campaign, stage.held)
    assert (frozen["planned"], frozen["complete"], frozen["failed"]) == (6, 5, 1)
    score = json.loads((stage.campaign / campaign.SCORES / f"{run_id}.json").read_bytes())
    assert (score["state"], score["marks"]) == ("crashed", [])
    assert canonical.dumps(score) == (stage.campaign / campaign.SCORES / f"{run_id}.json").read_bytes()
    shutil.rmtree(stage.campaign / campaign.SCORES)

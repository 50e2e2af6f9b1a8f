"""Every attack of the table is stopped by what the table says, and leaves no score."""

import on_artifacts
import on_campaigns
import on_processes
import on_runs
import pytest
from fabricate import write_campaign
from table import ATTACKS, Stage, reseal

from evaluator.score import score_campaign, score_run
from evaluator.verify import climb
from runner.execute import execute
from vqkit.errors import VerificationFailed, VqkitError
from vqkit.formats import campaign

MODULES = (on_artifacts, on_runs, on_campaigns, on_processes)


@pytest.fixture(scope="session")
def originals(tmp_path_factory, tiny, tiny_data):
    """A real run, a second one with another seed, and a made-up campaign: trained and written once."""
    root = tmp_path_factory.mktemp("originals")
    stage = Stage(root=root, originals=root, contract=tiny, data=tiny_data)
    for name, fields in (("run", {}), ("other", {"seed": 102, "run_id": "run-fedcba9876543210"})):
        assert execute(on_artifacts.request_for(stage, out=root / name, **fields))["state"] == "complete"
    write_campaign(root / "campaign", tiny, tiny_data)
    return root


@pytest.fixture
def stage(tmp_path, originals, tiny, tiny_data):
    return Stage(root=tmp_path, originals=originals, contract=tiny, data=tiny_data)


def failed(checks):
    return {check["id"] for check in checks if check["status"] == "failed"}


def attack_run(attack, stage):
    """The run is refused at the attack's level, and passes below it from V4 on."""
    level = max(attack.level, "V3")
    if level == "V4":
        below = climb(stage.run, stage.held)
        assert (below.status, below.level) == ("passed", "V3")
        assert any("fabricate" in text for text in below.not_proven)
    verdict = climb(stage.run, stage.held, level=level)
    assert attack.stop in failed([check.to_json() for check in verdict.checks])
    assert verdict.level < attack.level or verdict.level == "none"
    with pytest.raises(VerificationFailed) as caught:
        score_run(stage.run, stage.held, level=level)
    assert any(problem.where.endswith(f" {attack.stop}") for problem in caught.value.problems)


def attack_campaign(attack, stage):
    """The cells that were tampered with keep their place, unverified, without metrics."""
    frozen, _ = score_campaign(stage.campaign, stage.held)
    scores = [campaign.read_score(path)[0] for path in (stage.campaign / campaign.SCORES).iterdir()]
    hit = [score for score in scores if attack.stop in failed(score["verification"]["checks"])]
    assert hit
    assert len(scores) == frozen["planned"] == 6
    assert frozen["complete"] == 6 - len(hit)
    assert {(score["state"], len(score["marks"])) for score in hit} == {("unverified", 0)}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(attack, stage):
    if attack.kind == "call":
        with pytest.raises(VqkitError) as caught:
            attack.apply(stage)
        assert attack.stop in caught.value.codes
    else:
        attack.apply(stage)
    if attack.kind == "run":
        attack_run(attack, stage)
    if attack.kind == "campaign":
        attack_campaign(attack, stage)
    else:
        assert stage.scored() == []


def test_untouched_and_resealed_copies_pass(stage):
    """What stops an attack is not the copying or the resealing."""
    assert climb(stage.run, stage.held, level="V4").level == "V4"
    reseal(stage.run)
    assert climb(stage.run, stage.held, level="V4").level == "V4"
    score, _ = score_run(stage.run, stage.held, level="V4")
    assert (score["state"], score["verification"]["level"], len(score["marks"])) == ("complete", "V4", 3)
    frozen, problems = score_campaign(stage.campaign, stage.held)
    assert (frozen["complete"], problems) == (6, [])
    assert len(stage.scored()) == 7


def test_the_table_is_long_enough_and_says_each_thing_once():
    assert len(ATTACKS) >= 45
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)

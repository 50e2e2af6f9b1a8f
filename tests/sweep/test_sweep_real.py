"""A campaign of real runs on the tiny contract."""

import pytest
from playground import Playground, definition

from runner.sweep import command
from runner.sweep.estimate import evidence_bytes
from runner.sweep.host import Host
from vqkit.formats import campaign, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny, tiny_data):
    """A finished campaign of two arms and two seeds."""
    playground = Playground(tmp_path_factory.mktemp("real"), tiny, tiny_data)
    playground.options["sweep"] = definition(arms=1, seeds=2)
    playground.options["executor"]["slots"] = 1
    assert command.sweep(playground.options, tiny, tiny_data, host=Host()) == 0
    return playground


def test_every_cell_is_complete_and_bound_to_the_plan(finished):
    document, _ = campaign.read(finished.out, campaign.CAMPAIGN)
    assert finished.state()["states"] == {"complete": 4}
    for cell in document["cells"]:
        folder = finished.out / campaign.RUNS / cell["run_id"]
        made, _ = run.parse_plan((folder / run.PLAN).read_bytes())
        assert made["seed"] == cell["seed"]
        assert made["digests"] == {
            **{name: document["digests"][name] for name in ("source", "environment", "contract", "dataset")},
            "intervention": cell["intervention"],
            "proposal": made["digests"]["proposal"],
        }


def test_a_cell_is_what_a_fresh_process_state_gives(finished, tmp_path):
    """The last cell that a worker trained equals one that is trained alone."""
    sealed, _ = campaign.read(finished.out, campaign.ARMS)
    document, _ = campaign.read(finished.out, campaign.CAMPAIGN)
    last = finished.events("sealed")[-1]["run_id"]
    seed = {cell["run_id"]: cell["seed"] for cell in document["cells"]}[last]
    label = {cell["run_id"]: cell["arm"] for cell in sealed["cells"]}[last]
    Host().execute(
        None,
        intervention={arm["label"]: arm["proposal"] for arm in sealed["arms"]}[label].encode(),
        contract=finished.contract,
        phase="development",
        seed=seed,
        marks=tuple(document["marks"]),
        device="cpu",
        threads=1,
        data=finished.data,
        out=tmp_path / "alone",
        run_id=last,
        salt=bytes.fromhex(sealed["salt"]),
    )
    alone = run.parse_manifest((tmp_path / "alone" / run.MANIFEST).read_bytes())
    assert (
        alone["predicate"]["digests"]
        == run.parse_manifest((finished.out / campaign.RUNS / last / run.MANIFEST).read_bytes())["predicate"]["digests"]
    )


def test_disk_estimate_is_near_what_runs_take(finished):
    runs = list((finished.out / campaign.RUNS).iterdir())
    used = sum(path.stat().st_size for folder in runs for path in folder.rglob("*") if path.is_file())
    assert used <= len(runs) * evidence_bytes(finished.contract, (0, 1, 2)) <= 1.5 * used

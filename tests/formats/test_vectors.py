"""Vectors as files, kept for ever: valid ones are read, invalid ones have exactly the codes that index.json names."""

import json

import pytest
from conftest import REPOSITORY, tiny_spec

from vqkit.errors import Rejected, raise_all
from vqkit.formats import calibration, campaign, canonical, dataset, intervention, run, schema, signature, tensors
from vqkit.formats.contract import Contract, read_lock

VECTORS = REPOSITORY / "tests" / "vectors"
INDEX = json.loads((VECTORS / "index.json").read_text())
TINY = Contract(tiny_spec())


def _campaign_file(name):
    return lambda path: campaign.read(*_placed(path, name))


def _placed(path, name):
    """A folder in which the vector stands under the campaign's name for it."""
    folder = path.parent.parent / "placed"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(path.read_bytes())
    return folder, name


def _card(path):
    card = canonical.loads_canonical(path.read_bytes(), where=dataset.CARD)
    raise_all(Rejected, schema.problems(card, dataset.CARD_SCHEMA, dataset.CARD))


READERS = {
    "intervention": lambda path: intervention.check(path.read_bytes(), TINY),
    "contract": lambda path: Contract(canonical.loads(path.read_bytes())),
    "lock": lambda path: read_lock(file=path),
    "plan": lambda path: run.parse_plan(path.read_bytes()),
    "manifest": lambda path: run.parse_manifest(path.read_bytes()),
    "terminal": lambda path: run.parse_terminal(path.read_bytes()),
    "reveal": lambda path: run.parse_reveal(path.read_bytes()),
    "signature": lambda path: signature.parse(path.read_bytes()),
    "campaign": _campaign_file(campaign.CAMPAIGN),
    "arms": _campaign_file(campaign.ARMS),
    "score": lambda path: campaign.read_score(path),
    "exhibit": lambda path: campaign.parse_exhibit(path.read_bytes(), path.name),
    "setting": _campaign_file(campaign.SETTING),
    "frozen": _campaign_file(campaign.FROZEN),
    "unblinded": _campaign_file(campaign.UNBLINDED),
    "ledger": lambda path: campaign.read_ledger(path.read_bytes()),
    "dataset": _card,
    "calibration": lambda path: calibration.parse(path.read_bytes()),
    "mark": lambda path: tensors.decode(path.read_bytes(), run.mark_layout(TINY), where="mark"),
    "steps": lambda path: tensors.decode(path.read_bytes(), run.steps_layout(8), where="steps"),
}


@pytest.fixture
def copied(tmp_path):
    """A function that copies a vector away from the kept ones, so that no test can touch these."""

    def copy(kind, name):
        path = tmp_path / "vector" / name
        path.parent.mkdir()
        path.write_bytes((VECTORS / kind / name).read_bytes())
        return path

    return copy


@pytest.mark.parametrize("name", INDEX["valid"])
def test_valid(copied, name):
    READERS[INDEX["valid"][name]["format"]](copied("valid", name))


@pytest.mark.parametrize("name", INDEX["invalid"])
def test_invalid(copied, name):
    entry = INDEX["invalid"][name]
    with pytest.raises(Rejected) as caught:
        READERS[entry["format"]](copied("invalid", name))
    assert sorted(caught.value.codes) == sorted(entry["codes"])


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_the_index_names_every_file(kind):
    assert {path.name for path in (VECTORS / kind).iterdir()} == set(INDEX[kind])


def test_every_format_has_both_kinds():
    for kind in ("valid", "invalid"):
        found = {entry["format"] for entry in INDEX[kind].values()}
        assert found == READERS.keys() - ({"mark"} if kind == "invalid" else set())

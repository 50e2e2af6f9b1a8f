"""What a confirmatory campaign takes from an earlier calibration: budget, primary metric, number of seeds.

The file must be the one that its own campaign's ledger says was calibrated, and speak of this contract, dataset and
device class. A refused calibration names no budget, so that nothing can be planned from it.
"""

from dataclasses import dataclass
from pathlib import Path

from vqkit.errors import Problem, Refused, raise_all
from vqkit.formats import calibration, campaign, files


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """``record`` is what campaign.json keeps of it; ``marks`` and ``seeds`` are for ``definition.resolve``."""

    record: dict
    marks: tuple
    seeds: dict


def read(path, contract, dataset, device, environment, phase, marks):
    """The ``Calibrated`` in a file.

    Args:
        path: calibration.json, in the folder of its campaign.
        contract, dataset, device, environment, phase: of the campaign to plan; ``dataset`` is {id, digest},
            ``environment`` the facts.
        marks: those that were asked for, or None.

    Raises:
        Rejected: the file is not a calibration.
        Refused: E_CALIBRATION with everything that forbids planning from it.
    """
    path = Path(path)
    data = files.read_once(path, max_bytes=campaign.MAX_BYTES)
    value = calibration.parse(data, path.name)
    digest, decision = calibration.digest(data), value["decision"]
    logged = [
        event["detail"].get("digest") for event in campaign.ledger_events(path.parent) if event["event"] == "calibrated"
    ]
    held = {
        "phase": ("confirmatory", phase),
        "digest": (logged[-1] if logged else f"one that {campaign.LEDGER} beside it names", digest),
        "status": ("calibrated", decision["status"]),
        "contract": (contract.digest, value["contract"]["digest"]),
        "dataset": (dataset["digest"], value["dataset"]["digest"]),
        "device": (device, value["device"]["device"]),
    }
    if device == value["device"]["device"]:
        held["device class"] = (environment["device"], value["device"]["device_class"])
    wrong = [(name, expected, found) for name, (expected, found) in held.items() if expected != found]
    if decision["status"] == "calibrated" and marks is not None and decision["budget_mark"] not in marks:
        wrong.append(("budget", f"{decision['budget_mark']} among the marks", marks))
    planned, there = _planned(value), len(contract.seeds("confirmatory"))
    if decision["status"] == "calibrated" and (planned is None or planned > there):
        needed = "unknown" if planned is None else f"{planned} needed"
        wrong.append(("seeds", f"at most the {there} evaluation seeds of {contract.name}", needed))
    raise_all(
        Refused,
        [
            Problem(code="E_CALIBRATION", where=f"{path.name} {name}", expected=str(expected), found=str(found))
            for name, expected, found in wrong
        ],
    )
    mark, metric = decision["budget_mark"], decision["primary_metric"]
    return Calibrated(
        record={"digest": digest, "budget_mark": mark, "primary_metric": metric},
        marks=(0, mark),
        seeds={"count": planned},
    )


def _planned(value):
    """The number of seeds that the calibration plans for its primary metric, with the upper limit of σ."""
    metric = value["decision"]["primary_metric"]
    ways = [one["at_sigma_upper"] for one in value["sample_size"] if one["metric"] == metric]
    return ways[0]["plan"] if ways and ways[0] else None

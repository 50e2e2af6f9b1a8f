"""What a confirmatory campaign takes from an earlier calibration: budget, primary metric, number of seeds.

The file must lie in the folder of its campaign, a development one: the ledger there names it, and it names the files
there. It must speak of this contract, dataset and device class. A refused calibration names no budget, so that
nothing can be planned from it.
"""

from dataclasses import dataclass
from pathlib import Path

from vqkit.errors import Problem, Refused, raise_all
from vqkit.formats import calibration, campaign, digests, files

FILES = {  # key of a calibration → (the file that it names, what digests of such a file are called)
    "digest": (campaign.CAMPAIGN, "campaign"),
    "frozen": (campaign.FROZEN, "score"),
    "unblinded": (campaign.UNBLINDED, "campaign"),
    "results": ("results.csv", "results"),
}
BESIDE = (*(name for name, _ in FILES.values()), campaign.LEDGER)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """``record`` is what campaign.json keeps of it; ``marks`` and ``seeds`` are for ``definition.resolve``."""

    record: dict
    marks: tuple
    seeds: dict


def read(path, contract, dataset, device, environment, phase, seeds, marks):
    """The ``Calibrated`` in a file.

    Args:
        path: calibration.json, in the folder of its campaign.
        contract, dataset, device, environment, phase: of the campaign to plan; ``dataset`` is {id, digest},
            ``environment`` the facts.
        seeds, marks: those that were asked for, or None.

    Raises:
        Rejected: the file is not a calibration.
        Refused: E_CALIBRATION with everything that forbids planning from it.
    """
    path = Path(path)
    data = files.read_once(path, max_bytes=campaign.MAX_BYTES)
    value = calibration.parse(data, path.name)
    digest, decision = calibration.digest(data), value["decision"]
    raise_all(Refused, _apart(path))
    held = {
        "phase": ("confirmatory", phase),
        "campaign.phase": ("development", value["campaign"]["phase"]),
        **_bound(path.parent, value, digest),
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
    planned, there, asked = _planned(value), len(contract.seeds("confirmatory")), _count(seeds)
    if decision["status"] == "calibrated" and (planned is None or planned > there):
        needed = "unknown" if planned is None else f"{planned} needed"
        wrong.append(("seeds", f"at most the {there} evaluation seeds of {contract.name}", needed))
    elif decision["status"] == "calibrated" and asked is not None and asked < planned:
        wrong.append(("seeds", f"at least the {planned} that it prescribes", f"{asked} asked for"))
    raise_all(Refused, [_problem(path, *one) for one in wrong])
    mark, metric = decision["budget_mark"], decision["primary_metric"]
    return Calibrated(
        record={"digest": digest, "budget_mark": mark, "primary_metric": metric},
        marks=(0, mark),
        seeds={"count": planned},
    )


def unused(definition, seeds, marks):
    """A notice for seeds and marks of a sweep's definition that a calibration replaces.

    Args:
        definition: the sweep, as plain data.
        seeds, marks: those that were asked for beside it, or None; they come before both.
    """
    asked = {"seeds": seeds, "marks": marks}
    named = [key for key, override in asked.items() if override is None and definition.get(key) is not None]
    if named:
        yield f"{' and '.join(named)} of the sweep are not used, those of the calibration are"


def _apart(path):
    """What is missing of a campaign's folder around its calibration."""
    absent = [name for name in BESIDE if not (path.parent / name).is_file()]
    if absent:
        expected = f"calibration.json in the folder of its campaign, beside {', '.join(BESIDE)}"
        yield _problem(path, "folder", expected, f"no {', '.join(absent)} in {path.parent}")


def _bound(folder, value, digest):
    """name → (expected, found): the campaign's files against what calibration and ledger name."""
    named = value["campaign"] | {"results": value["results"]}
    held = {}
    for key, (name, kind) in FILES.items():
        data = files.read_once(folder / name, max_bytes=campaign.MAX_BYTES)
        held[name] = (named[key], digests.digest(kind, data))
    logged = {"frozen": [], "unblinded": [], "calibrated": []}
    for event in campaign.ledger_events(folder):
        if event["event"] in logged:
            logged[event["event"]].append(event["detail"].get("digest"))
    held["digest"] = ((logged["calibrated"] or [f"one that {campaign.LEDGER} beside it names"])[-1], digest)
    for key in ("frozen", "unblinded"):
        found = named[key] if named[key] in logged[key] else ", ".join(map(str, logged[key])) or "no such event"
        held[f"{campaign.LEDGER} {key}"] = (named[key], found)
    return held


def _problem(path, name, expected, found):
    return Problem(code="E_CALIBRATION", where=f"{path.name} {name}", expected=str(expected), found=str(found))


def _count(seeds):
    """The number of seeds that were asked for; None where none were, or nothing that can be counted."""
    if isinstance(seeds, dict):
        return seeds["count"] if isinstance(seeds.get("count"), int) else None
    return len(seeds) if isinstance(seeds, (list, tuple)) else None


def _planned(value):
    """The number of seeds that the calibration plans for its primary metric, with the upper limit of σ."""
    metric = value["decision"]["primary_metric"]
    ways = [one["at_sigma_upper"] for one in value["sample_size"] if one["metric"] == metric]
    return ways[0]["plan"] if ways and ways[0] else None

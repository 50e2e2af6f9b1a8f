"""The plan of a campaign: cells under opaque names, the arm of each sealed, all of it on disk before the first run."""

import os
import secrets
import shutil
from dataclasses import dataclass
from itertools import product

from runner.sweep import cells
from vqkit.errors import Problem, Refused, Rejected, VqkitError, raise_all
from vqkit.formats import campaign, canonical, dataset, digests, files, run
from vqkit.formats import source as sources
from vqkit.formats.contract import Contract

SALT_BYTES = 32
DIGESTED = "digested.json"  # what source and environment digest cover: says what differs, where its digests are those


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Everything that a campaign binds, but for its salt: two campaigns with equal terms are the same campaign.

    ``sweep`` is a ``definition.Sweep``, ``contract`` a ``Contract``, ``dataset`` {id, digest}, ``source`` a listing of
    files and ``environment`` facts, both as in a run's plan, ``calibration`` what the campaign was planned from, if it
    was.
    """

    sweep: object
    contract: object
    phase: str
    dataset: dict
    device: str
    threads: int
    source: list
    environment: dict
    calibration: dict | None = None

    def document(self, digest_of_arms, planned):
        """``campaign.json`` as plain data."""
        return ({"calibration": self.calibration} if self.calibration else {}) | {
            "schema": "vqkit.campaign/1",
            "name": self.sweep.name,
            "phase": self.phase,
            "contract": self.contract.spec,
            "dataset": self.dataset,
            "seeds": list(self.sweep.seeds),
            "marks": list(self.sweep.marks),
            "device": self.device,
            "threads": self.threads,
            "sweep": self.sweep.digest,
            "digests": {
                "source": sources.digest(self.source),
                "environment": digests.digest_json("environment", self.environment),
                "contract": self.contract.digest,
                "dataset": self.dataset["digest"],
                "analysis": self.contract.analysis_digest,
                "arms": digest_of_arms,
            },
            "cells": planned,
        }


def create(folder, terms):
    """Plan a campaign in ``folder``; it appears complete or not at all.

    Returns:
        True, or False when another process put a campaign there first.

    Raises:
        Rejected: E_FILE_EXISTS when the folder holds something else, E_FILE_WRITE when it can't be made.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    planned, sealed = _cells(terms.sweep, salt)
    arms = campaign.encode(campaign.ARMS, _arms(terms.sweep, salt, sealed))
    document = campaign.encode(campaign.CAMPAIGN, terms.document(digests.digest("campaign", arms), planned))
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise Rejected("E_FILE_WRITE", str(folder), "a folder that can be made", error.strerror) from None
    try:
        for name in cells.FOLDERS:
            (temporary / name).mkdir()
        (temporary / campaign.ARMS).parent.mkdir(mode=0o700)
        files.write_once(temporary / campaign.ARMS, arms, mode=0o600)
        files.write_once(temporary / campaign.CAMPAIGN, document)
        digested = {"source": terms.source, "environment": terms.environment}
        files.write_once(temporary / DIGESTED, canonical.dumps(digested))
        campaign.append_event(temporary, "planned", None, {"cells": len(planned)})
        return _appear(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def require_same(folder, terms):
    """The campaign in ``folder``; raises ``Refused`` (E_CAMPAIGN_CHANGED) with all that differs from ``terms``."""
    planned, _ = campaign.read(folder, campaign.CAMPAIGN)
    wanted = terms.document(planned["digests"]["arms"], planned["cells"])
    problems = []
    for key in ("name", "phase", "seeds", "marks", "device", "threads", "sweep"):
        problems += _difference(key, planned[key], wanted[key])
    problems += _difference("calibration", planned.get("calibration"), wanted.get("calibration"))
    problems += _difference("dataset.id", planned["dataset"]["id"], wanted["dataset"]["id"])
    for key in ("contract", "dataset"):
        problems += _difference(key, planned["digests"][key], wanted["digests"][key])
    problems += _source_differences(folder, planned, terms.source)
    problems += _environment_differences(folder, planned, terms.environment)
    if planned["sweep"] != wanted["sweep"]:
        problems += _arm_differences(folder, terms.sweep)
    if problems:
        advice = "the same settings, or out= with another folder for another campaign"
        problems.append(Problem(code="E_CAMPAIGN_CHANGED", where="out", expected=advice, found=str(folder)))
        raise Refused(problems)
    return planned


def require_here(folder, planned, data, host):
    """Raise ``Refused`` unless dataset, environment and source here are those that the campaign was planned with."""
    counts = dataset.contract_counts(Contract(planned["contract"]))
    pixels = dataset.open_dataset(data, counts).digest(counts)
    problems = _difference("dataset", planned["digests"]["dataset"], pixels)
    problems += _environment_differences(folder, planned, host.environment(planned["device"], planned["threads"]))
    problems += _source_differences(folder, planned, host.source())
    raise_all(Refused, problems)


def require_source(folder, planned, listing):
    """Raise ``Refused`` unless the source is the one that the campaign was planned with."""
    raise_all(Refused, _source_differences(folder, planned, listing))


def spent_seeds(folder, planned):
    """A notice for every other campaign beside this confirmatory one that scored some of its seeds, in any phase."""
    if planned["phase"] != "confirmatory":
        return
    for path in sorted(folder.parent.glob(f"*/{campaign.CAMPAIGN}")):
        if path.parent.samefile(folder):
            continue
        try:
            other, _ = campaign.read(path.parent, campaign.CAMPAIGN)
            events = campaign.ledger_events(path.parent)
        except VqkitError:
            yield f"{path.parent} can't be read; whether it scored seeds of this campaign is unknown"
            continue
        scored = {event["run_id"] for event in events if event["event"] == "scored"}
        seeds = {cell["seed"] for cell in other["cells"] if cell["run_id"] in scored} & set(planned["seeds"])
        if seeds:
            yield f"evaluation seeds {', '.join(map(str, sorted(seeds)))} were used before: {path.parent} scored them"


def _cells(sweep, salt):
    """(cells as published, cells with their arm), both sorted by run id."""
    of_arm = [(arm, arm.checked.digests(salt)) for arm in sweep.arms]
    rows = sorted(
        (run.run_id(salt, known, seed), seed, known["intervention"], arm.label)
        for (arm, known), seed in product(of_arm, sweep.seeds)
    )
    planned = [{"run_id": name, "seed": seed, "intervention": digest} for name, seed, digest, _ in rows]
    return planned, [{"run_id": name, "arm": label} for name, _, _, label in rows]


def _arms(sweep, salt, sealed):
    """``sealed/arms.json`` as plain data."""
    return {
        "schema": "vqkit.arms/1",
        "salt": salt.hex(),
        "arms": [
            {
                "label": arm.label,
                "role": arm.role,
                "proposal": arm.checked.raw.decode(),
                "effective": arm.checked.effective,
                "status": arm.checked.status,
            }
            for arm in sweep.arms
        ],
        "cells": sealed,
    }


def _appear(temporary, folder):
    """Rename a finished plan into its place; False when a campaign is there."""
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if campaign.is_there(folder):
            return False
        expected = "a campaign, an empty folder or a name that is not taken"
        raise Rejected("E_FILE_EXISTS", str(folder), expected, error.strerror) from None
    files.sync_folder(folder.parent)
    return True


def _difference(name, planned, wanted):
    if planned == wanted:
        return []
    return [
        Problem(code="E_CAMPAIGN_CHANGED", where=name, expected=f"{_shown(planned)}, as planned", found=_shown(wanted))
    ]


def _source_differences(folder, planned, listing):
    """The files that differ, came or went."""
    expected, found = planned["digests"]["source"], sources.digest(listing)
    if expected == found:
        return []
    before = _digested(folder, "source", expected, sources.digest)
    if before is None:
        return _difference("source", expected, found)
    return _differences(
        "source ", *({file["name"]: f"sha256:{file['sha256']}" for file in f} for f in (before, listing))
    )


def _environment_differences(folder, planned, facts):
    """The facts that differ, by name."""
    expected, found = planned["digests"]["environment"], digests.digest_json("environment", facts)
    if expected == found:
        return []
    before = _digested(folder, "environment", expected, lambda value: digests.digest_json("environment", value))
    if before is None:
        return _difference("environment", expected, found)
    return _differences("environment.", _flat(before), _flat(facts))


def _digested(folder, key, expected, digest):
    """What the campaign's digest ``expected`` covers, if it is on record and is just that; else None."""
    try:
        value = canonical.loads(files.read_once(folder / DIGESTED, max_bytes=canonical.MAX_BYTES), where=DIGESTED)[key]
        return value if digest(value) == expected else None
    except (VqkitError, LookupError, TypeError, AttributeError):
        return None


def _flat(facts):
    """Facts with dotted names, one level deep."""
    nested = {f"{key}.{name}": value for key, of in facts.items() if isinstance(of, dict) for name, value in of.items()}
    return {key: value for key, value in facts.items() if not isinstance(value, dict)} | nested


def _differences(prefix, before, after):
    names = sorted(before.keys() | after.keys())
    pairs = ((name, before.get(name, "none"), after.get(name, "none")) for name in names)
    return [problem for name, *pair in pairs for problem in _difference(f"{prefix}{name}", *pair)]


def _shown(value):
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _arm_differences(folder, sweep):
    """Which arms came, went or changed, by label; nothing is said about cells."""
    sealed, _ = campaign.read(folder, campaign.ARMS)
    planned = {arm["label"]: (arm["role"], arm["proposal"]) for arm in sealed["arms"]}
    wanted = {arm.label: (arm.role, arm.checked.raw.decode()) for arm in sweep.arms}
    problems = []
    for label in sorted(planned.keys() | wanted.keys()):
        if planned.get(label) != wanted.get(label):
            words = ("none", "another artifact")
            problems += _difference(
                f"arm {label}",
                "none" if label not in planned else "its artifact",
                words[label in wanted],
            )
    return problems

"""Unblind: open ``sealed/`` after the scores are frozen, and hold it against every digest made before training."""

from evaluator.held import Folder
from evaluator.score import score_path
from vqkit.errors import Problem, Refused, Rejected, VerificationFailed, raise_all
from vqkit.formats import campaign, canonical, digests, files, intervention, run
from vqkit.formats.contract import Contract

_SEALED, _REVEAL = run.REVEAL.split("/")


def unblind_run(run_dir):
    """The reveal of a single scored run, whose digests must be those of its plan.

    Raises:
        Refused: E_NOT_FROZEN while there is no score, or the score is of another plan or manifest.
        VerificationFailed: when the reveal is not what the plan was made from.
    """
    path = score_path(run_dir)
    if not path.exists():
        raise Refused("E_NOT_FROZEN", run_dir.name, f"a score ({path.name})", "none")
    score, _ = campaign.read_score(path)
    with Folder(run_dir) as folder:
        for kind, name in (("plan", run.PLAN), ("manifest", run.MANIFEST)):
            found = digests.digest(kind, folder.read(name, canonical.MAX_BYTES))
            if found != score["digests"].get(kind):
                raise Refused("E_NOT_FROZEN", run_dir.name, f"the {kind} that was scored", found)
    reveal = _read_reveal(run_dir)
    plan, contract = run.parse_plan(files.read_once(run_dir / run.PLAN))
    expected = {"run_id": score["run_id"], **{name: plan["digests"][name] for name in ("intervention", "proposal")}}
    raise_all(VerificationFailed, _reveal_problems(reveal, expected, contract, plan["phase"]))
    return reveal


def unblind_campaign(folder):
    """Write ``unblinded.json`` and return its value; a second call finds the same bytes.

    Raises:
        Refused: E_NOT_FROZEN until ``frozen.json`` binds this campaign and every score file as it is now.
        VerificationFailed: with everything in which the sealed arms differ from what was planned or ran.
    """
    plan, campaign_bytes = campaign.read(folder, campaign.CAMPAIGN)
    frozen_bytes, scores = _frozen(folder, plan, campaign_bytes)
    arms, arms_bytes = campaign.read(folder, campaign.ARMS)
    contract, phase, salt = Contract(plan["contract"]), plan["phase"], bytes.fromhex(arms["salt"])
    problems = _map_problems(plan, arms, arms_bytes)
    unblinded_arms = []
    for arm in arms["arms"]:
        checked, found = _check(arm, contract, phase, f"arm {arm['label']}")
        problems += found
        unblinded_arms.append(
            {
                "label": arm["label"],
                "role": arm["role"],
                "intervention": digests.digest_json("intervention", arm["effective"], salt),
                "effective": arm["effective"],
                "status": arm["status"],
                "expected": checked.artifact["expected"] if checked else None,
                "rationale": checked.artifact["rationale"] if checked else None,
            }
        )
    by_label = {arm["label"]: (arm, shown) for arm, shown in zip(arms["arms"], unblinded_arms, strict=True)}
    label_of = {cell["run_id"]: cell["arm"] for cell in arms["cells"]}
    for cell in plan["cells"]:
        if label_of.get(cell["run_id"]) in by_label:
            problems += _cell_problems(folder, cell, *by_label[label_of[cell["run_id"]]], arms["salt"], scores)
    raise_all(VerificationFailed, problems)
    value = {
        "schema": "vqkit.unblinded/1",
        "campaign": digests.digest("campaign", campaign_bytes),
        "frozen": digests.digest("score", frozen_bytes),
        "arms": unblinded_arms,
        "cells": [{"run_id": cell["run_id"], "arm": label_of[cell["run_id"]]} for cell in plan["cells"]],
    }
    _write(folder, campaign.encode(campaign.UNBLINDED, value))
    return value


def _frozen(folder, plan, campaign_bytes):
    """The bytes of ``frozen.json``, and run id → score; ``Refused`` unless it binds what is there now."""
    if not (folder / campaign.FROZEN).exists():
        raise Refused("E_NOT_FROZEN", campaign.FROZEN, "frozen scores", "none")
    frozen, frozen_bytes = campaign.read(folder, campaign.FROZEN)
    odd, scores = [], {}
    if frozen["campaign"] != digests.digest("campaign", campaign_bytes):
        odd.append((campaign.FROZEN, "this campaign's digest", frozen["campaign"]))
    names = [score["run_id"] for score in frozen["scores"]]
    if sorted(names) != sorted(cell["run_id"] for cell in plan["cells"]):
        odd.append((campaign.FROZEN, "a score for each cell", f"{len(names)} scores"))
    for entry in frozen["scores"]:
        place = f"{campaign.SCORES}/{entry['run_id']}.json"
        try:
            data = files.read_once(folder / place, max_bytes=campaign.MAX_BYTES)
        except Rejected as error:
            odd.append((place, entry["score"], error.problems[0].found))
            continue
        found = digests.digest("score", data)
        if found != entry["score"]:
            odd.append((place, entry["score"], found))
        else:
            scores[entry["run_id"]] = campaign.parse_score(data, place)
    raise_all(
        Refused,
        [Problem(code="E_NOT_FROZEN", where=where, expected=expected, found=found) for where, expected, found in odd],
    )
    return frozen_bytes, scores


def _map_problems(plan, arms, arms_bytes):
    """The arm map is the one that was planned, and maps every cell once."""
    labels, cells = [arm["label"] for arm in arms["arms"]], [cell["run_id"] for cell in arms["cells"]]
    planned = [cell["run_id"] for cell in plan["cells"]]
    seed = {cell["run_id"]: cell["seed"] for cell in plan["cells"]}
    pairs = [(cell["arm"], seed.get(cell["run_id"])) for cell in arms["cells"]]
    facts = {
        "digest": (plan["digests"]["arms"], digests.digest("campaign", arms_bytes)),
        "labels": (sorted(set(labels)), sorted(labels)),
        "cells": (sorted(planned), sorted(cells)),
        "arms of cells": (sorted(labels), sorted({cell["arm"] for cell in arms["cells"]})),
        "seeds of arms": (len(set(pairs)), len(pairs)),
        "reference arms": (1, [arm["role"] for arm in arms["arms"]].count("reference")),
    }
    return [
        _problem(f"{campaign.ARMS} {name}", expected, found)
        for name, (expected, found) in facts.items()
        if expected != found
    ]


def _cell_problems(folder, cell, arm, shown, salt, scores):
    """A cell's intervention digest is its arm's; what a verified run sealed is its arm, too."""
    run_id, problems = cell["run_id"], []
    if shown["intervention"] != cell["intervention"]:
        problems.append(_problem(f"{run_id} intervention", cell["intervention"], shown["intervention"]))
    bound = scores[run_id]["digests"]
    if "proposal" not in bound:
        return problems  # the run is lost or unverified: it has no plan that binds anything
    try:
        reveal = _read_reveal(folder / campaign.RUNS / run_id)
    except Rejected as error:
        return [*problems, _problem(f"{run_id} {run.REVEAL}", "a reveal", error.problems[0].found)]
    expected = {"run_id": run_id, "salt": salt} | {name: arm[name] for name in ("proposal", "effective", "status")}
    problems += [
        _problem(f"{run_id} {run.REVEAL} {name}", "as the arm has it", "another")
        for name, value in expected.items()
        if reveal[name] != value
    ]
    return problems + _digest_problems(reveal, bound, run_id)


def _reveal_problems(reveal, expected, contract, phase):
    """A single run's reveal: its digests are the plan's, and its artifact gives the knobs that it names."""
    problems = _digest_problems(reveal, expected, expected["run_id"])
    if reveal["run_id"] != expected["run_id"]:
        problems.append(_problem(f"{run.REVEAL} run_id", expected["run_id"], reveal["run_id"]))
    return problems + _check(reveal, contract, phase, run.REVEAL)[1]


def _digest_problems(reveal, bound, where):
    """The salted digests of a reveal against those bound before training."""
    salt = bytes.fromhex(reveal["salt"])
    found = {
        "intervention": digests.digest_json("intervention", reveal["effective"], salt),
        "proposal": digests.digest("proposal", salt, reveal["proposal"].encode()),
    }
    return [
        _problem(f"{where} {run.REVEAL} {name} digest", bound[name], value)
        for name, value in found.items()
        if bound[name] != value
    ]


def _check(record, contract, phase, where):
    """The checked artifact of an arm or a reveal (None where it is not valid), and the problems found."""
    try:
        checked = intervention.check(record["proposal"].encode(), contract, phase, where=where)
    except Rejected as error:
        return None, list(error.problems)
    named = {name: record[name] for name in ("effective", "status")}
    found = {"effective": checked.effective, "status": checked.status}
    return checked, [
        _problem(f"{where} {name}", found[name], named[name]) for name in named if named[name] != found[name]
    ]


def _read_reveal(run_dir):
    with Folder(run_dir) as folder, Folder(_SEALED, folder) as sealed:
        return run.parse_reveal(sealed.read(_REVEAL, canonical.MAX_BYTES))


def _write(folder, text):
    path = folder / campaign.UNBLINDED
    if not path.exists():
        files.write_once(path, text)
    elif files.read_once(path, max_bytes=campaign.MAX_BYTES) != text:
        raise VerificationFailed("E_VERIFY", campaign.UNBLINDED, "what the sealed arms give", "another map")
    logged = any(event["event"] == "unblinded" for event in campaign.ledger_events(folder))
    if not logged and (folder / campaign.LEDGER).exists():
        campaign.append_event(folder, "unblinded", None, {"digest": digests.digest("campaign", text)})


def _problem(where, expected, found):
    return Problem(code="E_VERIFY", where=where, expected=str(expected), found=str(found))

"""Score a campaign or one run, blind to the arm: verify to V3 or V4, write the metrics, and freeze them.

A campaign's scores lie in ``scores/RUN_ID.json``, with an exhibit of each complete run beside them in ``exhibits/``;
``frozen.json`` binds them when every cell has an outcome. A second call recomputes all of it and must find the same
bytes. Nothing here opens ``sealed/``.
"""

import os

from evaluator import exhibit
from evaluator.checks import Check
from evaluator.verify import climb
from vqkit.errors import Incomplete, Problem, Refused, VerificationFailed, raise_all
from vqkit.formats import campaign, canonical, digests, files, schema, source
from vqkit.formats.contract import Contract
from vqkit.formats.run import MANIFEST, PLAN_DIGESTS

LOST = ("missing", "timeout", "crashed")  # outcomes of cells that left no manifest


def score_run(run_dir, held, *, level="V3"):
    """Verify one run to ``level`` and write its score and its exhibit beside it; returns (score, path).

    Raises:
        VerificationFailed: with every failed check; nothing is written.
        Incomplete: without a manifest, or when a check lacks an input of the verifier.
    """
    verdict = climb(run_dir, held, level=level)
    raise_all(VerificationFailed, verdict.failures())
    raise_all(Incomplete, _missing_inputs(verdict))
    value = _score(verdict, verdict.run_id, verdict.plan["seed"], verdict.state)
    path = score_path(run_dir)
    texts = {path: _encode(value, path.name)}
    if verdict.exhibit is not None:
        texts[run_dir.with_name(f"{run_dir.name}.exhibit.json")] = verdict.exhibit
    _write_all(texts)
    return value, path


def score_path(run_dir):
    """Where the score of a single run lies: beside the run, which stays as it was sealed."""
    return run_dir.with_name(f"{run_dir.name}.score.json")


def score_campaign(folder, held, *, level="V3", final=False):
    """Score every cell of a campaign and freeze the scores; returns (frozen, failures).

    Args:
        folder: the campaign's folder.
        held: what the verifier holds.
        level: how far each run is verified, V3 or V4.
        final: declare cells that have no outcome missing, so that the scores can be frozen.

    Returns:
        ``frozen.json`` as a value, and the problems of the cells that failed verification.

    Raises:
        VerificationFailed: when the campaign contradicts itself, or an existing score is not what was computed.
        Incomplete: E_CAMPAIGN_INCOMPLETE for cells without an outcome; what could be scored has been.
        Refused: E_FROZEN when a cell that was frozen as lost has a manifest now, or the ledger says that other scores
            were frozen; E_VERIFIER_INPUT when the verifier holds another source, dataset or contract than the whole
            campaign names: frozen scores can't be made again, so that a wrong checkout must not fail every cell.
    """
    plan, data = campaign.read(folder, campaign.CAMPAIGN)
    raise_all(VerificationFailed, _contradictions(plan))
    raise_all(Refused, _foreign(plan, held))
    folders = (campaign.RUNS, campaign.SCORES, campaign.EXHIBITS)
    odd = {name: folder / name for name in folders if os.path.lexists(folder / name)}
    raise_all(
        VerificationFailed,
        [
            Problem(code="E_VERIFY", where=name, expected="a folder", found="a link" if path.is_symlink() else "a file")
            for name, path in odd.items()
            if path.is_symlink() or not path.is_dir()
        ],
    )
    frozen = campaign.read(folder, campaign.FROZEN)[0] if (folder / campaign.FROZEN).exists() else None
    events = campaign.ledger_events(folder)
    lost = _lost(folder, plan, events, frozen, final)
    verdicts = _verdicts(folder, plan, held, lost, level)
    raise_all(Incomplete, [gap for verdict in verdicts.values() for gap in _missing_inputs(verdict)])

    scores = {}
    for cell in plan["cells"]:
        run_id = cell["run_id"]
        if run_id in verdicts:
            verdict = verdicts[run_id]
            state = verdict.state if verdict.status == "passed" else "unverified"
            scores[run_id] = _score(verdict, run_id, cell["seed"], state)
        elif lost[run_id] is not None:
            scores[run_id] = _lost_score(run_id, cell["seed"], lost[run_id])
    undecided = [run_id for run_id, outcome in lost.items() if outcome is None]
    if undecided:
        scores = {run_id: score for run_id, score in scores.items() if run_id in verdicts}  # the others may be retried
    encoded = {run_id: _encode(score, f"{run_id}.json") for run_id, score in scores.items()}
    (folder / campaign.SCORES).mkdir(exist_ok=True)
    _write_all({folder / campaign.SCORES / f"{run_id}.json": text for run_id, text in encoded.items()})
    _log(folder, events, [("scored", run_id, _digest(text)) for run_id, text in encoded.items()])
    raise_all(
        Incomplete,
        [
            Problem(code="E_CAMPAIGN_INCOMPLETE", where=run_id, expected="a manifest or a failure", found="neither")
            for run_id in undecided
        ],
    )
    images = held.dataset(Contract(plan["contract"])).originals.images
    setting = exhibit.setting(verdicts.values(), images)
    frozen = _frozen(data, scores, encoded, setting)
    text = campaign.encode(campaign.FROZEN, frozen)
    before = [event["detail"].get("digest") for event in events if event["event"] == "frozen"]
    if before and before[0] != _digest(text):
        raise Refused("E_FROZEN", str(folder), f"the scores that were frozen first, {before[0]}", _digest(text))
    _write_all({folder / campaign.SETTING: setting, folder / campaign.FROZEN: text})
    _log(folder, events, [("frozen", None, _digest(text))])
    return frozen, [problem for verdict in verdicts.values() for problem in verdict.failures()]


def _contradictions(plan):
    """What is wrong with a campaign in itself, before any cell is looked at."""
    contract = Contract(plan["contract"])
    pairs = {
        "digests.contract": (contract.digest, plan["digests"]["contract"]),
        "digests.analysis": (contract.analysis_digest, plan["digests"]["analysis"]),
        "digests.dataset": (plan["dataset"]["digest"], plan["digests"]["dataset"]),
        "marks": ([mark for mark in contract.marks if mark in plan["marks"]], sorted(plan["marks"])),
        "seeds": (sorted({cell["seed"] for cell in plan["cells"]}), sorted(plan["seeds"])),
        "seeds of the phase": ([], sorted(set(plan["seeds"]) - set(contract.seeds(plan["phase"])))),
        "run ids": (len(plan["cells"]), len({cell["run_id"] for cell in plan["cells"]})),
    }
    if "calibration" in plan:
        pairs["calibration"] = (True, campaign.keeps_prescription(plan, contract))
    if plan["phase"] == "development":  # a confirmatory arm without effect shares its digest with the reference
        distinct = {(cell["seed"], cell["intervention"]) for cell in plan["cells"]}
        pairs["cells"] = (len(plan["cells"]), len(distinct))
    return [
        Problem(code="E_VERIFY", where=f"{campaign.CAMPAIGN} {name}", expected=str(expected), found=str(found))
        for name, (expected, found) in pairs.items()
        if expected != found
    ]


def _foreign(plan, held):
    """What the verifier holds otherwise than the campaign as a whole names it."""
    contract, named = Contract(plan["contract"]), plan["digests"]
    holds = {"contract": held.lock.get(contract.name, "no lock")}
    if held.data is not None:
        holds["dataset"] = held.dataset(contract).digest
    if held.listing is not None:
        holds["source"] = source.digest(held.listing)
    return [
        Problem(code="E_VERIFIER_INPUT", where=f"{campaign.CAMPAIGN} {name}", expected=named[name], found=found)
        for name, found in holds.items()
        if found != named[name]
    ]


def _lost(folder, plan, events, frozen, final):
    """Run id → outcome of every cell without a manifest; None where nothing is known of it yet."""
    last = {event["run_id"]: event for event in events if event["event"] in ("claimed", "sealed", "failed", "retried")}
    decided = {score["run_id"]: score["state"] for score in frozen["scores"]} if frozen else {}
    lost, late = {}, []
    for cell in plan["cells"]:
        run_id = cell["run_id"]
        if os.path.lexists(folder / campaign.RUNS / run_id / MANIFEST):
            if decided.get(run_id) in LOST:
                late.append(
                    Problem(
                        code="E_FROZEN", where=run_id, expected=f"a cell frozen as {decided[run_id]}", found="a run"
                    )
                )
            continue
        event = last.get(run_id)
        if run_id in decided:
            lost[run_id] = decided[run_id] if decided[run_id] in LOST else "missing"
        elif event is not None and event["event"] == "failed":
            outcome = event["detail"].get("outcome")
            lost[run_id] = outcome if outcome in LOST else "crashed"
        else:
            lost[run_id] = "missing" if final else None
    raise_all(Refused, late)
    return lost


def _verdicts(folder, plan, held, lost, level):
    """Run id → verdict of every cell that has a manifest."""
    verdicts, exhibits, problems = {}, folder / campaign.EXHIBITS, []
    for cell in plan["cells"]:
        run_id = cell["run_id"]
        if run_id not in lost:
            verdict = climb(folder / campaign.RUNS / run_id, held, level=level, expect=_expected(plan, cell))
            if None in lost.values():
                verdict.exhibit = None  # a cell has no outcome yet: nobody who may retry sees more than scores
            problems += _keep(verdict, exhibits / f"{run_id}.json")
            verdicts[run_id] = verdict
    raise_all(VerificationFailed, problems)
    seeds = {cell["run_id"]: cell["seed"] for cell in plan["cells"]}
    owners = {}
    for run_id, verdict in verdicts.items():
        owners.setdefault(verdict.digests.get("evidence"), []).append(run_id)
    for run_id, verdict in verdicts.items():
        evidence = verdict.digests.get("evidence")
        twins = [other for other in owners[evidence] if evidence is not None and seeds[other] != seeds[run_id]]
        found = f"the evidence of {', '.join(twins)}" if twins else "its own"
        verdict.add("V2.duplicate", not twins, "evidence that no other seed has", found)
    return verdicts


def _keep(verdict, path):
    """Write the exhibit of a run whose verification passed, and let go of it: it is ten times as large as a score.

    Returns the problems of one that is there and holds other bytes. One that no score names means nothing.
    """
    data, verdict.exhibit = verdict.exhibit, None
    if data is None or verdict.status == "failed":
        return []
    path.parent.mkdir(exist_ok=True)
    try:
        _write_all({path: data})
    except VerificationFailed as error:
        return error.problems
    return []


def _expected(plan, cell):
    """What the plan of a cell must hold, by dotted name."""
    fixed = {f"digests.{name}": plan["digests"][name] for name in ("source", "environment", "contract", "dataset")}
    return fixed | {
        "run_id": cell["run_id"],
        "seed": cell["seed"],
        "digests.intervention": cell["intervention"],
        "phase": plan["phase"],
        "marks": sorted(plan["marks"]),
        "device": plan["device"],
        "threads": plan["threads"],
        "dataset": plan["dataset"],
    }


def _missing_inputs(verdict):
    """What kept a verdict from its level although nothing failed: a run that is not complete can reach V2."""
    if verdict.status == "failed":
        return []
    return verdict.gaps(verdict.asked if verdict.state == "complete" else "V2")


def _score(verdict, run_id, seed, state):
    """The score of a run that has a verdict; one that failed keeps its checks and loses its marks."""
    trusted = state != "unverified"
    kept = (*PLAN_DIGESTS, "plan", "evidence", "manifest", "exhibit") if trusted else ("plan", "manifest")
    return {
        "schema": "vqkit.score/1",
        "run_id": run_id,
        "seed": seed,
        "state": state,
        "verification": verdict.verification(),
        "digests": {name: verdict.digests[name] for name in kept if name in verdict.digests},
        "resources": verdict.resources if trusted else None,
        "marks": verdict.marks if trusted else [],
    }


def _lost_score(run_id, seed, outcome):
    """The score of a cell that left no manifest: it keeps its place."""
    check = Check(id="V0.manifest", status="failed", expected="a manifest", found=f"none: {outcome}")
    verification = {"status": "failed", "level": "none", "checks": [check.to_json()], "not_proven": ["everything"]}
    return {
        "schema": "vqkit.score/1",
        "run_id": run_id,
        "seed": seed,
        "state": outcome,
        "verification": verification,
        "digests": {},
        "resources": None,
        "marks": [],
    }


def _frozen(campaign_bytes, scores, encoded, setting):
    """``frozen.json``: planned = complete + failed + missing."""
    states = [score["state"] for score in scores.values()]
    complete, missing = states.count("complete"), states.count("missing")
    return {
        "schema": "vqkit.frozen/1",
        "campaign": digests.digest("campaign", campaign_bytes),
        "planned": len(states),
        "complete": complete,
        "failed": len(states) - complete - missing,
        "missing": missing,
        "setting": exhibit.digest(setting),
        "scores": [
            {"run_id": run_id, "score": _digest(encoded[run_id]), "state": score["state"]}
            for run_id, score in scores.items()
        ],
    }


def _encode(score, where):
    raise_all(VerificationFailed, schema.problems(score, campaign.SCORE_SCHEMA, where))
    return canonical.dumps(score)


def _digest(text):
    return digests.digest("score", text)


def _write_all(texts):
    """Write each path → bytes once; one that is there already must hold the same bytes, else nothing is written."""
    there = {path for path in texts if path.exists() or path.is_symlink()}
    problems = []
    for path in there:
        found = files.read_once(path, max_bytes=campaign.MAX_BYTES)
        if found != texts[path]:
            problems.append(
                Problem(
                    code="E_VERIFY",
                    where=f"{path.parent.name}/{path.name}",
                    expected=f"sha256 {digests.sha256_hex(texts[path])}, as recomputed",
                    found=f"sha256 {digests.sha256_hex(found)}",
                )
            )
    raise_all(VerificationFailed, sorted(problems, key=lambda problem: problem.where))
    for path, text in texts.items():
        if path not in there:
            files.write_once(path, text)


def _log(folder, events, entries):
    """Append (event, run id, digest) to the ledger, if the campaign keeps one and does not say so already."""
    known = {(event["event"], event["run_id"], event["detail"].get("digest")) for event in events}
    new = [
        (event, run_id, {"digest": digest}) for event, run_id, digest in entries if (event, run_id, digest) not in known
    ]
    if new and (folder / campaign.LEDGER).exists():
        campaign.append_events(folder, new)

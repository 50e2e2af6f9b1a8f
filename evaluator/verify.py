"""The verification ladder, V0 to V4: is the evidence of this run authentic and complete?

Nothing is written into a run. A check that lacks an input is ``not_run``. Whatever a run's files hold, the answer is a
verdict: only faults of the verifier's own inputs raise.
"""

import numpy as np

from evaluator import exhibit, metrics, replay, signature
from evaluator.checks import KEPT, SIGNATURE, Verdict, complete_catalogue, words
from evaluator.evidence import Evidence
from evaluator.held import Folder, Held
from vqkit.errors import Incomplete, Refused, Rejected
from vqkit.formats import digests, run, source
from vqkit.formats.contract import QUALITY

_NO_DATA = "the verifier holds no dataset (--data)"


def verify(run_dir, *, level="V3", data=None, source=None, lock=None):
    """Verify one run with inputs that the verifier holds (see ``Held``); returns a ``Verdict``.

    Raises:
        Incomplete: E_RUN_INCOMPLETE for a run without a manifest.
        Rejected: for a fault of ``data``, ``source`` or ``lock``.
    """
    return climb(run_dir, Held(data=data, source=source, lock=lock), level=level)


def climb(run_dir, held, *, level="V3", expect=None, kept=None):
    """``verify`` for callers with many runs: ``held`` is read once for all of them.

    Args:
        run_dir: the run folder.
        held: what the verifier holds.
        level: how far to go. Every check of a level is made, whatever another one of it found.
        expect: dotted names in the plan → the values that a campaign planned; None outside a campaign.
        kept: the manifest digest that somebody kept elsewhere, or None.
    """
    verdict = Verdict(name=run_dir.name, asked=level)
    try:
        folder = Folder(run_dir)
    except Rejected as error:
        if error.codes == ("E_FILE_MISSING",):
            raise Incomplete("E_RUN_INCOMPLETE", run_dir.name, "a run with a manifest", "nothing") from None
        verdict.add("V0.folder", False, "a folder, not a link", error)
    else:
        with folder:
            verdict.add("V0.folder", True, "a folder, not a link", "a folder")
            _climb(folder, held, verdict, expect, kept)
    wanted = {KEPT: kept, SIGNATURE: held.key}
    verdict.checks = complete_catalogue(verdict.checks, level, [name for name in wanted if wanted[name] is not None])
    return verdict


def _climb(folder, held, verdict, expect, kept):
    if folder.mode(run.MANIFEST) is None:
        raise Incomplete("E_RUN_INCOMPLETE", verdict.name, f"{run.MANIFEST}, written last", "none")
    evidence = Evidence(verdict)
    evidence.well_formed(folder)
    _attested(folder, evidence, held, verdict, kept)
    if verdict.failed("V0"):
        return
    if verdict.asked >= "V1":
        evidence.intact(folder)
    if verdict.asked >= "V2":
        _bound(evidence, held, verdict, expect)
    if verdict.asked >= "V3" and not verdict.failed("V1"):
        _recomputed(evidence, held, verdict)
    if verdict.asked >= "V4" and not verdict.failed("V1", "V2", "V3"):
        _replayed(evidence, held, verdict)


def _attested(folder, evidence, held, verdict, kept):
    """V1, where asked for: the manifest is the one whose digest was kept, and signed with the verifier's key."""
    found = verdict.digests.get("manifest")
    if found is None:
        return
    if kept is not None:
        verdict.add(KEPT, found == kept, kept, found)
    if held.key is not None:
        passed, words_found = signature.check(folder, evidence.manifest_bytes, held.public_key)
        verdict.add(SIGNATURE, passed, f"{run.SIGNATURE}, made with the key {held.key.name}", words_found)


def _bound(evidence, held, verdict, expect):
    """V2: source, dataset, environment and contract are those that the verifier holds."""
    plan, contract = evidence.plan, evidence.contract
    locked = held.lock.get(contract.name)
    found = f"{contract.name} {contract.digest}"
    verdict.add("V2.contract", contract.digest == locked, locked or "a locked name", found)
    _dataset(plan["dataset"], contract, held, verdict)
    _source(plan, held, verdict)
    found = digests.digest_json("environment", plan["environment"])
    verdict.add("V2.environment", found == plan["digests"]["environment"], plan["digests"]["environment"], found)
    _plan(evidence, verdict)
    seeds = contract.seeds(plan["phase"])
    verdict.add("V2.seed", plan["seed"] in seeds, f"a seed of the {plan['phase']} phase", str(plan["seed"]))
    if expect is not None:
        found = {name: _at(plan, name) for name in expect}
        wrong = [f"{name}: {found[name]}, not {expect[name]}" for name in expect if found[name] != expect[name]]
        verdict.add("V2.campaign", not wrong, "the plan of the campaign's cell", words(wrong) or "the cell's plan")


def _source(plan, held, verdict):
    expected, listing = plan["digests"]["source"], plan["source"]
    named = {entry["name"]: entry["sha256"] for entry in listing}
    if len(named) != len(listing) or source.digest(listing) != expected:
        verdict.add("V2.source", False, expected, "the plan's own listing of files has another digest")
    elif held.listing is None:
        verdict.skip("V2.source", expected, "the verifier holds no source tree (--source)")
    else:
        own = {entry["name"]: entry["sha256"] for entry in held.listing}
        odd = [name for name in own.keys() | named.keys() if own.get(name) != named.get(name)]
        found = source.digest(held.listing) + (f"; the verifier's tree differs in {words(odd)}" if odd else "")
        verdict.add("V2.source", found == expected, expected, found)


def _dataset(planned, contract, held, verdict):
    try:
        contract.require_dataset(planned["id"])
        if held.data is None or verdict.failed("V2"):
            why = _NO_DATA if held.data is None else "not opened: the contract that selects from it is not locked"
            verdict.skip("V2.dataset", planned["digest"], why)
            return
        own = held.dataset(contract)
    except (Refused, Rejected) as error:
        if not {"E_DATASET_NOT_ALLOWED", "E_DATA_EMPTY"} & set(error.codes):
            raise
        verdict.add("V2.dataset", False, error.problems[0].expected, error.problems[0].found)
    else:
        expected, found = f"{planned['id']} {planned['digest']}", f"{own.id} {own.digest}"
        verdict.add("V2.dataset", found == expected, expected, found)


def _plan(evidence, verdict):
    """Plan and manifest name the same digests, and the plan agrees with what it embeds."""
    plan, manifest = evidence.plan, evidence.manifest
    pairs = {
        "plan": (manifest["plan"], verdict.digests["plan"]),
        "run_id": (manifest["run_id"], plan["run_id"]),
        **{name: (manifest["digests"][name], plan["digests"][name]) for name in run.PLAN_DIGESTS},
        "embedded contract": (evidence.contract.digest, plan["digests"]["contract"]),
        "named dataset": (plan["dataset"]["digest"], plan["digests"]["dataset"]),
        "marks": (plan["marks"], [mark for mark in evidence.contract.marks if mark in plan["marks"]]),
    }
    odd = [f"{name}: {found}, not {expected}" for name, (found, expected) in pairs.items() if found != expected]
    if not plan["marks"]:
        odd.append("no mark")
    verdict.digests |= plan["digests"]
    verdict.add("V2.plan", not odd, "the digests of the plan, and marks of the contract", words(odd) or "the same")


def _recomputed(evidence, held, verdict):
    """V3: metrics from the raw evidence."""
    contract, terminal = evidence.contract, evidence.manifest["terminal"]
    measured = {mark: evidence.tensors[run.mark_file(mark)] for mark in terminal["marks"]}
    highest = {run.mark_file(mark): int(arrays["indices"].max()) for mark, arrays in measured.items()}
    high = [f"{name}: {index}" for name, index in highest.items() if index >= contract.codes]
    verdict.add("V3.indices", not high, f"indices below {contract.codes}", words(high) or "below")
    _steps(evidence, verdict)
    if terminal["state"] != "complete":
        for check_id in ("V3.finite", "V3.metrics"):
            verdict.skip(check_id, "a complete run", f"the run ended {terminal['state']}: it is not scored")
        return
    odd = [
        f"{name}: {tensor}"
        for name, arrays in evidence.tensors.items()
        for tensor, array in arrays.items()
        if array.dtype == np.float32 and not np.isfinite(array).all()
    ]
    verdict.add("V3.finite", not odd, "finite weights and step log", words(odd) or "finite")
    expected = f"metrics at marks {list(measured)}"
    if held.data is None:
        verdict.skip("V3.metrics", expected, _NO_DATA)
    elif high or verdict.failed("V2"):
        verdict.skip("V3.metrics", expected, "a check before it failed")
    else:
        originals = held.dataset(contract).originals
        verdict.marks = [_score(mark, arrays, originals, contract) for mark, arrays in measured.items()]
        verdict.add("V3.metrics", True, expected, "recomputed from the evidence")
        if not verdict.failed("V0", "V1", "V2", "V3"):
            verdict.exhibit = exhibit.of_run(evidence, measured)
            verdict.digests["exhibit"] = exhibit.digest(verdict.exhibit)


def _steps(evidence, verdict):
    """The counters agree with the plan; V1.layout has shown that the step log is as long as they say."""
    terminal, planned = evidence.manifest["terminal"], evidence.planned_steps()
    steps, applied, skipped = (terminal[name] for name in ("steps", "steps_applied", "steps_skipped"))
    agree = terminal["steps_planned"] == planned and applied + skipped <= steps <= planned
    if terminal["state"] == "complete":
        agree = agree and applied == planned
    reached = all(mark * evidence.contract.steps_per_epoch <= steps for mark in terminal["marks"])
    expected = f"{planned} planned, all of them applied in a complete run"
    found = f"planned {terminal['steps_planned']}, run {steps}, applied {applied}, skipped {skipped}"
    verdict.add("V3.steps", agree and reached, expected, found)


def _score(mark, arrays, originals, contract):
    """The metrics of one mark, as ``MARK_SCORE_SCHEMA`` has them."""
    counts = metrics.count_codes(arrays["indices"], contract.codes)
    values = metrics.codebook_metrics(counts) | originals.quality(arrays["reconstruction"])
    guardrails = {}
    for rule in contract.analysis["guardrails"]:
        above = QUALITY[rule["metric"]] * (values[rule["metric"]] - rule["limit"])
        guardrails[rule["metric"]] = {"limit": rule["limit"], "status": "ok" if above >= 0 else "broken"}
    return {"mark": mark, "counts": counts.tolist(), "guardrails": guardrails, **values}


def _replayed(evidence, held, verdict):
    """V4: the weights reproduce indices and reconstructions of images that nobody could foresee."""
    index_rule = f"{replay.AGREEMENT:.1%} of the indices at each mark, the others near ties"
    image_rule = f"reconstructions within {replay.GREY_LEVELS} grey level"
    if not verdict.marks:
        why = _NO_DATA if held.data is None else "the run is not scored"
        verdict.skip("V4.indices", index_rule, why)
        verdict.skip("V4.reconstruction", image_rule, why)
        return
    images, marks = held.dataset(evidence.contract).originals.images, evidence.plan["marks"]
    drawn = []
    for mark in marks:
        arrays, state = evidence.tensors[run.mark_file(mark)], evidence.tensors[run.state_file(mark)]
        chosen = slice(None) if held.all_images else replay.draw(evidence.manifest_bytes, mark, len(images))
        drawn.append((state, images[chosen], arrays["indices"][chosen], arrays["reconstruction"][chosen]))
    outcome = dict(zip(marks, replay.replay(drawn), strict=True))
    found = [f"mark {mark}: {one.equal:.3%} equal, {one.unexplained} unexplained" for mark, one in outcome.items()]
    verdict.add("V4.indices", all(one.indices_agree for one in outcome.values()), index_rule, "; ".join(found))
    found = [f"mark {mark}: {one.worst}" for mark, one in outcome.items()]
    agree = all(one.reconstructions_agree for one in outcome.values())
    verdict.add("V4.reconstruction", agree, image_rule, "; ".join(found))


def _at(plan, dotted):
    """The value at a dotted name."""
    for part in dotted.split("."):
        plan = plan[part]
    return plan

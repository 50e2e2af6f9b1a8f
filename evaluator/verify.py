"""The verification ladder, V0 to V4: is the evidence of this run authentic and complete?

Each file of a run is opened once, through open directories and following no link; the bytes that are hashed are the
bytes that are scored. Nothing is written into a run, and ``sealed/`` is not opened. A check that lacks an input is
``not_run``. Whatever a run's files hold, the answer is a verdict: only faults of the verifier's own inputs raise.
"""

import stat

import numpy as np

from evaluator import metrics, replay
from evaluator.checks import Verdict, complete_catalogue, made, not_run
from evaluator.held import Folder, Held
from vqkit.errors import Incomplete, Refused, Rejected
from vqkit.formats import canonical, digests, files, run, source, tensors
from vqkit.formats.contract import QUALITY

_SEALED = run.REVEAL.split("/")[0]
_MAX_TERMINAL = 1 << 16


def verify(run_dir, *, level="V3", data=None, source=None, lock=None):
    """Verify one run with inputs that the verifier holds (see ``Held``); returns a ``Verdict``.

    Raises:
        Incomplete: E_RUN_INCOMPLETE for a run without a manifest.
        Rejected: for a fault of ``data``, ``source`` or ``lock``.
    """
    return Ladder(Held(data=data, source=source, lock=lock), level).climb(run_dir)


class Ladder:
    """Climbs runs one by one; what the verifier holds is read once for all of them."""

    def __init__(self, held, level="V3"):
        self.held, self.level = held, level

    def climb(self, run_dir, expect=None):
        """The verdict on ``run_dir``. ``expect`` maps dotted names in the plan to the values a campaign planned."""
        return _Climb(self.held, self.level, run_dir, expect).verdict


class _Climb:
    def __init__(self, held, level, run_dir, expect):
        self.held, self.expect = held, expect
        self.verdict = Verdict(name=run_dir.name, asked=level)
        self.checks = self.verdict.checks
        try:
            folder = Folder(run_dir)
        except Rejected as error:
            if error.codes == ("E_FILE_MISSING",):
                raise Incomplete("E_RUN_INCOMPLETE", run_dir.name, "a run with a manifest", "nothing") from None
            self.add("V0.folder", False, "a folder, not a link", error)
        else:
            with folder:
                self.add("V0.folder", True, "a folder, not a link", "a folder")
                self.climb(folder)
        self.verdict.checks = complete_catalogue(self.checks, level)

    def climb(self, folder):
        if folder.mode(run.MANIFEST) is None:
            raise Incomplete("E_RUN_INCOMPLETE", self.verdict.name, f"{run.MANIFEST}, written last", "none")
        self.well_formed(folder)
        if self.failed("V0"):
            return
        if self.verdict.asked >= "V1":
            self.intact(folder)
        if self.verdict.asked >= "V2":
            self.bound()
        if self.verdict.asked >= "V3" and not self.failed("V1"):
            self.recomputed()
        if self.verdict.asked >= "V4" and not self.failed("V1", "V3"):
            self.replayed()

    def add(self, check_id, passed, expected, found):
        self.checks.append(made(check_id, passed, expected, found))

    def skip(self, check_id, expected, why):
        self.checks.append(not_run(check_id, expected, why))

    def failed(self, *levels):
        return any(check.status == "failed" and check.level in levels for check in self.checks)

    def well_formed(self, folder):
        """V0: plan and manifest are canonical JSON of their closed schemas, with names of the closed list."""
        verdict = self.verdict
        try:
            self.plan_bytes = folder.read(run.PLAN, canonical.MAX_BYTES)
            verdict.digests["plan"] = digests.digest("plan", self.plan_bytes)
            self.plan, self.contract = run.parse_plan(self.plan_bytes)
            verdict.plan, verdict.contract, verdict.run_id = self.plan, self.contract, self.plan["run_id"]
            self.add("V0.plan", True, "a canonical plan", "a canonical plan")
        except Rejected as error:
            self.add("V0.plan", False, "a canonical plan", error)
        try:
            self.manifest_bytes = folder.read(run.MANIFEST, canonical.MAX_BYTES)
            verdict.digests["manifest"] = digests.digest("manifest", self.manifest_bytes)
            manifest = run.parse_manifest(self.manifest_bytes)
        except Rejected as error:
            self.add("V0.manifest", False, "a canonical manifest", error)
            return
        self.manifest = manifest["predicate"]
        verdict.state, verdict.resources = self.manifest["terminal"]["state"], self.manifest["resources"]
        self.hashes = {entry["name"]: entry["digest"]["sha256"] for entry in manifest["subject"]}
        self.sizes = {entry["name"]: entry["size"] for entry in self.manifest["evidence"]}
        names = [entry["name"] for entry in manifest["subject"]]
        odd = [name for name in names if not run.is_evidence_name(name)]
        once = (
            len(names) == len(set(names)) == len(self.manifest["evidence"]) and self.hashes.keys() == self.sizes.keys()
        )
        found = f"other names: {_words(odd)}" if odd else "each name once" if once else "names that do not agree"
        self.add("V0.manifest", once and not odd, "plain evidence names, each once in subject and evidence", found)

    def intact(self, folder):
        """V1: every byte accounted for, nothing missing or extra, the terminal state present."""
        terminal = self.manifest["terminal"]
        odd = [f"extra {name}" for name in folder.names() - {run.PLAN, run.MANIFEST, run.EVIDENCE, _SEALED}]
        sealed = folder.mode(_SEALED)
        if sealed is not None and not stat.S_ISDIR(sealed):
            odd.append(f"{_SEALED} is no folder")
        contents = {}
        try:
            with Folder(run.EVIDENCE, folder) as evidence:
                names = evidence.names()
                odd += [f"extra {run.EVIDENCE}/{name}" for name in names - self.hashes.keys()]
                odd += [f"missing {run.EVIDENCE}/{name}" for name in self.hashes.keys() - names]
                for name in sorted(self.hashes):
                    contents[name] = self.content(evidence, name)
        except Rejected as error:
            odd.append(str(error))
        self.add("V1.files", not odd, "the files that the manifest names, and no other", _words(odd) or "as named")
        contents = {name: data for name, data in contents.items() if data is not None}
        wrong = [
            f"{name}: {len(data)}, not {self.sizes[name]}"
            for name, data in contents.items()
            if len(data) != self.sizes[name]
        ]
        self.add("V1.sizes", not wrong, "the sizes that the manifest names", _words(wrong) or "as named")
        entries = [(name, len(data), digests.sha256_hex(data)) for name, data in contents.items()]
        found = digests.digest_files("evidence", entries)
        self.verdict.digests["evidence"] = found
        expected = self.manifest["digests"]["evidence"]
        self.add("V1.evidence_digest", found == expected, expected, found)
        self.terminal(contents.get(run.TERMINAL), terminal)
        self.marks(terminal)
        self.layout(contents, terminal)

    def content(self, evidence, name):
        """The bytes of one evidence file, held against the manifest; None where they can't be had."""
        expected = f"sha256 {self.hashes[name]}"
        try:
            data = evidence.read(name, self.size_limit(name))
        except Rejected as error:
            self.add(f"V1.content.{name}", False, expected, error)
            return None
        found = f"sha256 {digests.sha256_hex(data)}"
        self.add(f"V1.content.{name}", found == expected, expected, found)
        return data

    def size_limit(self, name):
        """The most bytes an evidence file can have: known from the contract before it is opened."""
        layout = self.layout_of(name)
        return _MAX_TERMINAL if layout is None else min(tensors.size_limit(layout), files.MAX_BYTES)

    def layout_of(self, name):
        """The tensors of an evidence file; None for the terminal statement, which has none."""
        if name == run.TERMINAL:
            return None
        if name == run.STEPS:
            return run.steps_layout(min(self.manifest["terminal"]["steps"], self.planned_steps()))
        return run.mark_layout(self.contract) if name.startswith("mark-") else run.state_layout(self.contract)

    def planned_steps(self):
        return max(self.plan["marks"], default=0) * self.contract.steps_per_epoch

    def terminal(self, data, expected):
        try:
            passed = data is not None and run.parse_terminal(data) == expected
            found = "the same" if passed else "nothing" if data is None else "another"
        except Rejected as error:
            passed, found = False, error
        self.add("V1.terminal", passed, f"{run.TERMINAL} equals the manifest's terminal statement", found)

    def marks(self, terminal):
        """Evidence at every mark that the terminal state says was measured: all of them for a complete run."""
        planned, measured = self.plan["marks"], terminal["marks"]
        complete = terminal["state"] == "complete"
        wanted = planned if complete else planned[: len(measured)]
        passed = measured == wanted and sorted(self.hashes) == sorted(run.evidence_names(measured))
        expected = f"the marks {planned}" if complete else f"the first of the marks {planned}"
        self.add(
            "V1.marks",
            passed,
            f"evidence at {expected}",
            f"{terminal['state']}, marks {measured}, evidence {sorted(self.hashes)}",
        )

    def layout(self, contents, terminal):
        """Every tensor file has the names, types and shapes that the contract gives it."""
        self.tensors, wrong = {}, []
        for name, data in contents.items():
            if name == run.TERMINAL:
                continue
            try:
                self.tensors[name] = tensors.decode(data, self.layout_of(name), where=name)
            except Rejected as error:
                wrong.append(str(error))
        self.add("V1.layout", not wrong, "tensors as the contract lays them out", _words(wrong) or "as laid out")

    def bound(self):
        """V2: source, dataset, environment and contract are those that the verifier holds."""
        plan, contract = self.plan, self.contract
        expected = self.held.lock.get(contract.name)
        self.add(
            "V2.contract",
            contract.digest == expected,
            expected or "a locked name",
            f"{contract.name} {contract.digest}",
        )
        self.source()
        self.dataset()
        found = digests.digest_json("environment", plan["environment"])
        self.add("V2.environment", found == plan["digests"]["environment"], plan["digests"]["environment"], found)
        self.bindings()
        try:
            contract.require_seed(plan["seed"], plan["phase"])
            self.add("V2.seed", True, f"a seed of the {plan['phase']} phase", str(plan["seed"]))
        except Refused as error:
            self.add("V2.seed", False, error.problems[0].expected, error.problems[0].found)
        if self.expect is not None:
            wrong = [
                f"{name}: {_at(plan, name)!r}, not {value!r}"
                for name, value in self.expect.items()
                if _at(plan, name) != value
            ]
            self.add("V2.campaign", not wrong, "the plan of the campaign's cell", _words(wrong) or "the cell's plan")

    def source(self):
        expected = self.plan["digests"]["source"]
        named = {entry["name"]: entry["sha256"] for entry in self.plan["source"]}
        listed = len(named) == len(self.plan["source"]) and source.digest(self.plan["source"]) == expected
        if not listed:
            self.add("V2.source", False, expected, "the plan's own listing of files has another digest")
        elif self.held.listing is None:
            self.skip("V2.source", expected, "the verifier holds no source tree (--source)")
        else:
            own = {entry["name"]: entry["sha256"] for entry in self.held.listing}
            odd = sorted(name for name in own.keys() | named.keys() if own.get(name) != named.get(name))
            found = source.digest(self.held.listing)
            differs = f"; the verifier's tree differs in {_words(odd)}" if odd else ""
            self.add("V2.source", found == expected, expected, f"{found}{differs}")

    def dataset(self):
        plan = self.plan["dataset"]
        try:
            self.contract.require_dataset(plan["id"])
            if self.held.data is None:
                self.skip("V2.dataset", plan["digest"], "the verifier holds no dataset (--data)")
                return
            own = self.held.dataset(self.contract)
            found = {"id": own.id, "digest": own.digest}
            self.add("V2.dataset", found == plan, *(f"{one['id']} {one['digest']}" for one in (plan, found)))
        except (Refused, Rejected) as error:
            if not {"E_DATASET_NOT_ALLOWED", "E_DATA_EMPTY"} & set(error.codes):
                raise
            self.add("V2.dataset", False, error.problems[0].expected, error.problems[0].found)

    def bindings(self):
        """Plan and manifest name the same digests, and the plan follows from what it embeds."""
        plan, manifest = self.plan, self.manifest
        pairs = {
            "plan": (manifest["plan"], self.verdict.digests["plan"]),
            "run_id": (manifest["run_id"], plan["run_id"]),
            **{name: (manifest["digests"][name], plan["digests"][name]) for name in run.PLAN_DIGESTS},
            "embedded contract": (plan["digests"]["contract"], self.contract.digest),
            "dataset id": (plan["digests"]["dataset"], plan["dataset"]["digest"]),
            "marks": (plan["marks"], [mark for mark in self.contract.marks if mark in plan["marks"]]),
        }
        odd = [f"{name}: {found}, not {expected}" for name, (found, expected) in pairs.items() if found != expected]
        self.verdict.digests |= plan["digests"]
        self.add(
            "V2.plan",
            not odd and bool(plan["marks"]),
            "manifest and plan name the same digests, and marks of the contract",
            _words(odd) or "the same",
        )

    def recomputed(self):
        """V3: metrics from the raw evidence."""
        terminal, codes = self.manifest["terminal"], self.contract.codes
        complete = terminal["state"] == "complete"
        measured = {mark: self.tensors[run.mark_file(mark)] for mark in terminal["marks"]}
        high = [
            f"mark {mark}: {arrays['indices'].max()}"
            for mark, arrays in measured.items()
            if arrays["indices"].max() >= codes
        ]
        self.add("V3.indices", not high, f"indices below {codes}", _words(high) or "below")
        self.steps(terminal)
        if not complete:
            for check_id in ("V3.finite", "V3.metrics"):
                self.skip(check_id, "a complete run", f"the run ended {terminal['state']}: it is not scored")
            return
        odd = [
            f"{name} {tensor}"
            for name, arrays in self.tensors.items()
            for tensor, array in arrays.items()
            if array.dtype == np.float32 and not np.isfinite(array).all()
        ]
        self.add("V3.finite", not odd, "finite weights and step log", _words(odd) or "finite")
        if self.held.data is None:
            self.skip("V3.metrics", "metrics from the evidence", "the verifier holds no dataset (--data)")
        elif high or self.failed("V2"):
            self.skip("V3.metrics", "metrics from the evidence", "a check before it failed")
        else:
            originals = self.held.dataset(self.contract).originals
            self.verdict.marks = [self.score(mark, arrays, originals) for mark, arrays in measured.items()]
            self.add("V3.metrics", True, "metrics from the evidence", f"recomputed at marks {list(measured)}")

    def steps(self, terminal):
        """The step log is as long as the run says, and the counters agree with the plan."""
        planned, steps = self.planned_steps(), terminal["steps"]
        applied, skipped = terminal["steps_applied"], terminal["steps_skipped"]
        agree = terminal["steps_planned"] == planned and steps <= planned and applied + skipped <= steps
        if terminal["state"] == "complete":
            agree = agree and steps == applied == planned
        reached = all(mark * self.contract.steps_per_epoch <= steps for mark in terminal["marks"])
        self.add(
            "V3.steps",
            agree and reached,
            f"{planned} planned; a complete run applied them all",
            f"planned {terminal['steps_planned']}, run {steps}, applied {applied}, skipped {skipped}",
        )

    def score(self, mark, arrays, originals):
        """The metrics of one mark, as ``MARK_SCORE_SCHEMA`` has them."""
        counts = metrics.count_codes(arrays["indices"], self.contract.codes)
        values = metrics.codebook_metrics(counts) | originals.quality(arrays["reconstruction"])
        guardrails = {
            rule["metric"]: {
                "limit": rule["limit"],
                "status": "ok" if QUALITY[rule["metric"]] * (values[rule["metric"]] - rule["limit"]) >= 0 else "broken",
            }
            for rule in self.contract.analysis["guardrails"]
        }
        return {"mark": mark, "counts": counts.tolist(), "guardrails": guardrails, **values}

    def replayed(self):
        """V4: the weights reproduce indices and reconstructions of images that nobody could foresee."""
        expected = f"{replay.AGREEMENT:.1%} of the indices, the others near ties"
        picture = f"reconstructions within {replay.GREY_LEVELS} grey level"
        if self.held.data is None or self.failed("V2") or not self.verdict.marks:
            why = (
                "the verifier holds no dataset (--data)" if self.held.data is None else "there are no metrics to replay"
            )
            self.skip("V4.indices", expected, why)
            self.skip("V4.reconstruction", picture, why)
            return
        images = self.held.dataset(self.contract).originals.images
        marks = []
        for mark in self.plan["marks"]:
            arrays, state = self.tensors[run.mark_file(mark)], self.tensors[run.state_file(mark)]
            drawn = replay.draw(self.manifest_bytes, mark, len(images))
            marks.append((state, images[drawn], arrays["indices"][drawn], arrays["reconstruction"][drawn]))
        outcome = dict(zip(self.plan["marks"], replay.replay(marks), strict=True))
        words = [f"mark {mark}: {one.equal:.4%} equal, {one.unexplained} no near tie" for mark, one in outcome.items()]
        self.add("V4.indices", all(one.indices_agree for one in outcome.values()), expected, _words(words))
        words = [f"mark {mark}: {one.worst} grey levels" for mark, one in outcome.items()]
        self.add(
            "V4.reconstruction", all(one.reconstructions_agree for one in outcome.values()), picture, _words(words)
        )


def _at(plan, dotted):
    """The value at a dotted name."""
    for part in dotted.split("."):
        plan = plan[part]
    return plan


def _words(parts):
    return (
        ", ".join(sorted(parts)) if len(parts) <= 20 else f"{', '.join(sorted(parts)[:20])} and {len(parts) - 20} more"
    )

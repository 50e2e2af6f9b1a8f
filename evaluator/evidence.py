"""V0 and V1: open a sealed run and account for every byte of it.

Each file is opened once, through open directories and following no link; the bytes that are hashed here are the bytes
that are decoded and scored. ``sealed/`` is not opened.
"""

import re
import stat

from evaluator.checks import words
from evaluator.held import Folder
from vqkit.errors import Rejected
from vqkit.formats import canonical, digests, files, run, tensors

_SEALED = run.REVEAL.split("/")[0]
_MAX_TERMINAL = 1 << 16
_SECOND_NAME = re.compile(rf"\.{re.escape(run.MANIFEST)}\.[0-9]+\.tmp")


class Evidence:
    """The files of one run. What the checks find goes into ``verdict``; ``tensors`` maps file names to arrays.

    ``plan``, ``contract`` and ``manifest`` (its predicate) are there when V0 did not fail, ``tensors`` when V1 did not.
    """

    def __init__(self, verdict):
        self.verdict = verdict
        self.add = verdict.add

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
        once = sorted(names) == sorted(self.hashes) == sorted(entry["name"] for entry in self.manifest["evidence"])
        found = f"other names: {words(odd)}" if odd else "each name once" if once else "names that do not agree"
        self.add("V0.manifest", once and not odd, "plain evidence names, each once in subject and evidence", found)

    def intact(self, folder):
        """V1: every byte accounted for, nothing missing or extra, the terminal state present."""
        terminal = self.manifest["terminal"]
        names = {name for name in folder.names() if not self.second_name(folder, name)}
        odd = [f"extra {name}" for name in names - {run.PLAN, run.MANIFEST, run.SIGNATURE, run.EVIDENCE, _SEALED}]
        sealed = folder.mode(_SEALED)
        if sealed is not None and not stat.S_ISDIR(sealed):
            odd.append(f"{_SEALED} is no folder")
        contents, self.room = {}, files.MAX_BYTES
        try:
            with Folder(run.EVIDENCE, folder) as evidence:
                names = evidence.names()
                odd += [f"extra {run.EVIDENCE}/{name}" for name in names - self.hashes.keys()]
                odd += [f"missing {run.EVIDENCE}/{name}" for name in self.hashes.keys() - names]
                for name in sorted(self.hashes):
                    contents[name] = self.content(evidence, name)
        except Rejected as error:
            odd.append(str(error))
        self.add("V1.files", not odd, "the files that the manifest names, and no other", words(odd) or "as named")
        contents = {name: data for name, data in contents.items() if data is not None}
        wrong = [
            f"{name}: {len(data)}, not {self.sizes[name]}"
            for name, data in contents.items()
            if len(data) != self.sizes[name]
        ]
        self.add("V1.sizes", not wrong, "the sizes that the manifest names", words(wrong) or "as named")
        entries = [(name, len(data), digests.sha256_hex(data)) for name, data in contents.items()]
        found = digests.digest_files("evidence", entries)
        self.verdict.digests["evidence"] = found
        expected = self.manifest["digests"]["evidence"]
        self.add("V1.evidence_digest", found == expected, expected, found)
        self.terminal(contents.get(run.TERMINAL), terminal)
        self.marks(terminal)
        self.layout(contents)

    def second_name(self, folder, name):
        """Whether ``name`` is what a crash right after sealing leaves: the manifest under its temporary name too."""
        if not _SECOND_NAME.fullmatch(name):
            return False
        try:
            return folder.read(name, canonical.MAX_BYTES) == self.manifest_bytes
        except Rejected:
            return False

    def content(self, evidence, name):
        """The bytes of one evidence file, held against the manifest; None where they can't be had."""
        expected = f"sha256 {self.hashes[name]}"
        try:
            data = evidence.read(name, min(self.size_limit(name), self.room))
        except Rejected as error:
            self.add(f"V1.content.{name}", False, expected, error)
            return None
        self.room -= len(data)
        found = f"sha256 {digests.sha256_hex(data)}"
        self.add(f"V1.content.{name}", found == expected, expected, found)
        return data

    def size_limit(self, name):
        """The most bytes an evidence file can have: known from the contract before it is opened.

        The contract may be one that nobody locked, with sizes of its own choice: ``room`` bounds all files together.
        """
        layout = self.layout_of(name)
        return _MAX_TERMINAL if layout is None else tensors.size_limit(layout)

    def layout_of(self, name):
        """The tensors of an evidence file; None for the terminal statement, which has none."""
        if name == run.TERMINAL:
            return None
        if name == run.STEPS:
            return run.steps_layout(min(self.manifest["terminal"]["steps"], self.planned_steps()))
        return run.mark_layout(self.contract) if name.startswith("mark-") else run.state_layout(self.contract)

    def planned_steps(self):
        """The optimizer steps that the plan asks for."""
        return max(self.plan["marks"], default=0) * self.contract.steps_per_epoch

    def terminal(self, data, expected):
        """The terminal statement is there and says what the manifest says."""
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

    def layout(self, contents):
        """Every tensor file has the names, types and shapes that the contract gives it."""
        self.tensors, wrong = {}, []
        for name, data in contents.items():
            if name == run.TERMINAL:
                continue
            try:
                self.tensors[name] = tensors.decode(data, self.layout_of(name), where=name)
            except Rejected as error:
                wrong.append(str(error))
        self.add("V1.layout", not wrong, "tensors as the contract lays them out", words(wrong) or "as laid out")

"""What a verification says: its checks, the level that they reach, and what that level does not prove."""

from dataclasses import asdict, dataclass, field

from vqkit.errors import Problem
from vqkit.formats.campaign import LEVELS

# Every check of every level. One that was not made is reported as not_run, never left out.
CATALOGUE = {
    "V0": ("V0.folder", "V0.plan", "V0.manifest"),
    "V1": ("V1.files", "V1.sizes", "V1.content", "V1.evidence_digest", "V1.terminal", "V1.marks", "V1.layout"),
    "V2": ("V2.contract", "V2.source", "V2.dataset", "V2.environment", "V2.plan", "V2.seed"),
    "V3": ("V3.indices", "V3.finite", "V3.steps", "V3.metrics"),
    "V4": ("V4.indices", "V4.reconstruction"),
    "V5": ("V5.evidence",),
}
# Checks that are made where somebody asks for them: against a digest that was kept, with a key.
KEPT, SIGNATURE = "V1.kept", "V1.signature"
MEANING = {
    "none": "nothing",
    "V0": "well-formed",
    "V1": "intact",
    "V2": "bound",
    "V3": "recomputed",
    "V4": "replayed",
    "V5": "reproduced",
}
# Level → what stays open when no higher one is reached.
_OPEN = {
    "none": "V0 is not reached: the files do not have the form of a run",
    "V0": "V1 is not reached: files may be missing, extra, or changed since they were sealed",
    "V1": "V2 is not reached: source, dataset or contract may be others than the verifier's, or were not compared",
    "V2": "V3 is not reached: no metric was recomputed from the evidence",
    "V3": "V4 is not reached: a malicious runner can fabricate evidence that is consistent up to here",
    "V4": "V5 is not reached: the weights may come from another training than the plan's",
    "V5": "another device class or another seed may give other results",
}
_DECLARED = "environment and resources are what the runner said of itself: the digests bind the words, not the machine"
_MAX_TEXT = 2000


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: ``status`` is passed, failed or not_run."""

    id: str
    status: str
    expected: str
    found: str

    @property
    def level(self):
        return self.id[:2]

    def to_json(self):
        return {**asdict(self), "level": self.level}


def _plain(text):
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


@dataclass(kw_only=True)
class Verdict:
    """The verdict on one run.

    ``checks`` holds every check of the catalogue; ``state`` is the terminal state or None where it can't be known;
    ``marks`` are the recomputed metrics (``MARK_SCORE_SCHEMA``), empty for a run that is not complete;
    ``exhibit`` is what people want to see of a complete run that passed V3, as bytes.
    """

    name: str
    run_id: str | None = None
    asked: str
    checks: list = field(default_factory=list)
    state: str | None = None
    plan: dict | None = None
    contract: object = None
    marks: list = field(default_factory=list)
    digests: dict = field(default_factory=dict)
    resources: dict | None = None
    exhibit: bytes | None = None

    def add(self, check_id, passed, expected, found):
        """Record a check that was made; texts are cut to what a score file may hold."""
        status = "passed" if passed else "failed"
        self.checks.append(Check(id=check_id, status=status, expected=_plain(expected), found=_plain(str(found))))

    def skip(self, check_id, expected, why):
        """Record a check that could not be made."""
        self.checks.append(Check(id=check_id, status="not_run", expected=_plain(expected), found=_plain(why)))

    def failed(self, *levels):
        """Whether a check of these levels has failed."""
        return any(check.status == "failed" and check.level in levels for check in self.checks)

    @property
    def level(self):
        """The highest level whose checks, and those of all lower levels, have all passed."""
        reached = "none"
        for level in LEVELS[1:]:
            if any(check.status != "passed" for check in self.checks if check.level == level):
                break
            reached = level
        return reached

    @property
    def status(self):
        """``failed`` when any check failed. ``passed`` says that no check failed; ``level`` says how far they went."""
        return "failed" if any(check.status == "failed" for check in self.checks) else "passed"

    @property
    def reached(self):
        """Whether the level that was asked for is reached."""
        return LEVELS.index(self.level) >= LEVELS.index(self.asked)

    @property
    def not_proven(self):
        """What this verdict leaves open, in words."""
        return [_OPEN[self.level], *([_DECLARED] if LEVELS.index(self.level) >= LEVELS.index("V2") else [])]

    def failures(self):
        """A problem for every failed check."""
        return [
            Problem(code="E_VERIFY", where=f"{self.name} {check.id}", expected=check.expected, found=check.found)
            for check in self.checks
            if check.status == "failed"
        ]

    def gaps(self, level):
        """A problem for every check up to ``level`` that was not run."""
        return [
            Problem(
                code="E_VERIFY_NOT_RUN", where=f"{self.name} {check.id}", expected=check.expected, found=check.found
            )
            for check in self.checks
            if check.status == "not_run" and check.level <= level
        ]

    def to_json(self):
        """The verdict for a machine."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "verification": self.verification(),
            "digests": self.digests,
            "marks": self.marks,
        }

    def verification(self):
        """The ``verification`` part of a score."""
        return {
            "status": self.status,
            "level": self.level,
            "checks": [check.to_json() for check in self.checks],
            "not_proven": self.not_proven,
        }

    def table(self):
        """The verdict for a person."""
        rows = [("check", "status", "found"), *((c.id, c.status, c.found) for c in self.checks)]
        first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
        lines = [f"{row[0]:<{first}}  {row[1]:<{second}}  {_line(row[2])}" for row in rows]
        lines.append("")
        lines.append(f"{self.name}: state {self.state or 'unknown'}; reached {self.level} ({MEANING[self.level]})")
        lines.extend(f"not proven: {text}" for text in self.not_proven)
        return "\n".join(lines)


def complete_catalogue(checks, asked, wanted=()):
    """``checks`` in the catalogue's order, with a not_run entry for each check that is not among them.

    ``wanted`` names checks beyond the catalogue that were asked for.
    """
    result = []
    for level, ids in CATALOGUE.items():
        for check_id in [*ids, *(name for name in wanted if name.startswith(level))]:
            found = [check for check in checks if check.id == check_id or check.id.startswith(f"{check_id}.")]
            why = "a check before it failed" if level <= asked else f"not asked for (asked: {asked})"
            result += found or [Check(id=check_id, status="not_run", expected=MEANING[level], found=why)]
    return result + [check for check in checks if check not in result]


def words(parts):
    """Names in words: sorted, twenty at most."""
    shown = ", ".join(sorted(parts)[:20])
    return f"{shown} and {len(parts) - 20} more" if len(parts) > 20 else shown


def _line(text):
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."

"""The table of attacks: what is done, what stops it, and at which level.

An attack is one small function. ``on_run`` and ``on_campaign`` attacks tamper with a copy, which is then verified and
scored: the check named in ``stop`` must fail, and nothing may be scored. A ``call`` attack must raise the code named
in ``stop``. An attack that ``holds`` makes its own assertions, and ``stop`` says in words what they show.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fabricate

from evaluator.held import Held
from vqkit.formats import campaign, canonical, digests, run

ATTACKS = []


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One row. ``level`` is the rung of the ladder, or who refuses: reader, runner or evaluator."""

    name: str
    stop: str
    level: str
    kind: str
    apply: Any


def on_run(name, stop):
    """Tamper with a run: ``stop`` is the check that fails. From V4 on, all levels below must pass."""
    return _register("run", name, stop, stop[:2])


def on_campaign(name, stop):
    """Tamper with one cell of a campaign: ``stop`` is the check that fails in its score."""
    return _register("campaign", name, stop, stop[:2])


def call(name, stop, level):
    """Something that must raise the code ``stop``."""
    return _register("call", name, stop, level)


def holds(name, stop, level):
    """Something that does no harm; the function shows it."""
    return _register("holds", name, stop, level)


def _register(kind, name, stop, level):
    def add(function):
        ATTACKS.append(Attack(name=name, stop=stop, level=level, kind=kind, apply=function))
        return function

    return add


@dataclass(kw_only=True)
class Stage:
    """Where one attack happens: copies of a real run, of a second one (another seed) and of a made-up campaign."""

    root: Path
    originals: Path
    contract: Any
    data: Path

    @property
    def run(self):
        return self._copy("run")

    @property
    def other(self):
        return self._copy("other")

    @property
    def campaign(self):
        return self._copy("campaign")

    @property
    def lock(self):
        path = self.root / "LOCK.json"
        return path if path.exists() else fabricate.write_lock(path, self.contract)

    @property
    def held(self):
        return Held(data=self.data, lock=self.lock)

    def _copy(self, name):
        folder = self.root / name
        if not os.path.lexists(folder):
            shutil.copytree(self.originals / name, folder)
        return folder

    def evidence(self, name):
        """The path of an evidence file of the run."""
        return self.run / run.EVIDENCE / name

    def cells(self):
        return campaign.read(self.campaign, campaign.CAMPAIGN)[0]["cells"]

    def cell(self, number=0):
        """The run folder of a cell."""
        return self.campaign / campaign.RUNS / self.cells()[number]["run_id"]

    def scored(self):
        """Every file that holds a score with metrics."""
        found = [*self.root.rglob("*.score.json"), *self.root.rglob("scores/*.json")]
        return [path for path in found if path.is_file() and json.loads(path.read_bytes())["marks"]]


def overwrite(path, change):
    """Replace the bytes of a file by what ``change`` makes of them."""
    fabricate.replace(path, change(path.read_bytes()))


def edit_json(path, change):
    """Change a JSON file in place; it stays canonical."""
    value = json.loads(path.read_bytes())
    change(value)
    fabricate.replace(path, canonical.dumps(value))


def reseal(folder, *, contents=None, plan=None, manifest=None):
    """Forge consistently: change evidence (name → bytes), plan or manifest, and make every digest fit again."""
    planned, _ = run.parse_plan((folder / run.PLAN).read_bytes())
    sealed = run.parse_manifest((folder / run.MANIFEST).read_bytes())["predicate"]
    held = {path.name: path.read_bytes() for path in (folder / run.EVIDENCE).iterdir()}
    if plan:
        plan(planned)
    if contents:
        contents(held)
    raw = canonical.dumps(planned)
    entries = [(name, len(data), digests.sha256_hex(data)) for name, data in held.items()]
    terminal = json.loads(held[run.TERMINAL])
    statement = run.build_manifest(raw, planned, entries, terminal, sealed["resources"])
    if manifest:
        manifest(statement)
    for name, data in held.items():
        path = folder / run.EVIDENCE / name
        if not path.exists() or path.read_bytes() != data:
            path.unlink(missing_ok=True)
            path.write_bytes(data)
    fabricate.replace(folder / run.PLAN, raw)
    fabricate.replace(folder / run.MANIFEST, canonical.dumps(statement))


def rows(outcomes):
    """The table as text; ``outcomes`` maps an attack's name to stopped | NOT STOPPED | skipped."""
    lines = [("attack", "stopped by", "level", "outcome")]
    lines += [(one.name, one.stop, one.level, outcomes.get(one.name, "not run")) for one in ATTACKS]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def print_table(outcomes):
    """Print the table and the count."""
    stopped = sum(outcome == "stopped" for outcome in outcomes.values())
    print(f"{rows(outcomes)}\n\n{stopped} of {len(ATTACKS)} attacks stopped")

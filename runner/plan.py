"""The plan: what will run, with every digest that exists before training."""

from dataclasses import dataclass
from pathlib import Path

from runner import environment
from vqkit.errors import Refused
from vqkit.formats import canonical, dataset, digests, intervention, source
from vqkit.formats.contract import Contract


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run, as asked for. ``intervention`` is the artifact's bytes, ``data`` a canonical dataset folder, ``out`` the
    run directory to be made, ``salt`` 32 bytes, ``budget_seconds`` a limit on training time or None."""

    intervention: bytes
    contract: Contract
    phase: str
    seed: int
    marks: tuple
    device: str
    threads: int
    data: Path
    out: Path
    run_id: str
    salt: bytes
    budget_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``document`` is ``plan.json`` as plain data; ``checked`` the intervention; ``data`` the opened selection."""

    document: dict
    checked: intervention.Checked
    data: dataset.Dataset

    @property
    def raw(self):
        """The canonical bytes of ``plan.json``."""
        return canonical.dumps(self.document)


def make_plan(request):
    """Check a request against every rule, and plan it. Pins the process as a side effect.

    Raises:
        Rejected: the intervention or the dataset is not valid.
        Refused: no effect in the development phase, a seed of the other phase, marks, dataset or device not allowed.
    """
    contract = request.contract
    checked = intervention.check(request.intervention, contract, request.phase)
    if checked.status == "no_effect" and request.phase == "development":
        raise Refused("E_NO_EFFECT", "intervention", "a change of the effective knobs", "rejected_no_effect")
    contract.require_seed(request.seed, request.phase)
    marks = contract.require_marks(request.marks)
    counts = dataset.contract_counts(contract)
    data = dataset.open_dataset(request.data, counts)
    contract.require_dataset(data.id)
    pixels = data.digest(counts)
    environment.pin(request.device, request.threads)
    facts = environment.environment(request.device, request.threads)
    files = source.listing()
    document = {
        "schema": "vqkit.plan/1",
        "run_id": request.run_id,
        "phase": request.phase,
        "contract": contract.spec,
        "dataset": {"id": data.id, "digest": pixels},
        "seed": request.seed,
        "marks": list(marks),
        "device": request.device,
        "threads": request.threads,
        "environment": facts,
        "source": files,
        "digests": {
            "source": source.digest(files),
            "dataset": pixels,
            "environment": digests.digest_json("environment", facts),
            "contract": contract.digest,
            **checked.digests(request.salt),
        },
    }
    return Plan(document=document, checked=checked, data=data)

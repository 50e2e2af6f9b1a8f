"""python -m runner: knobs | check | run | sign | repeat | sweep | status | retry | data | lock."""

import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from vqkit.errors import ArgumentParser, Rejected, UsageError, guarded
from vqkit.formats import canonical, digests, files, intervention
from vqkit.formats.contract import CONFIGS
from vqkit.formats.knobs import KNOBS

USAGE = """\
usage: python -m runner COMMAND …

  knobs [--json | --schema]        what an intervention may set; the schema of the artifact
  check FILE                       effective knobs, digests and status of an artifact, or everything wrong with it
  run intervention=FILE seed=N     one run: contract= device= marks= data= phase= threads= out= budget_seconds=
  sign RUN --key FILE              sign the manifest of a run (Ed25519; extra `sign`)
  repeat RUN --data DIR --out DIR  train once more what a sealed run planned; opens its reveal
  sweep                            a campaign: sweep= preset= contract= data= out= seeds= executor.slots= dry_run=
  status DIR | retry DIR           the state of a campaign; run its failed cells again
  data prepare SOURCE | list | show DATASET
                                   make the canonical file of a dataset; those that are made
  lock NAME                        lock a new contract by its digest

COMMAND --help lists all options. Exit codes: 0 done; 1 internal; 2 usage; 3 artifact rejected; 4 refused by a rule;
5 the run did not complete; 6 verification failed; 7 incomplete."""


def main(argv):
    """Dispatch one command; the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command, rest = (argv[0], argv[1:]) if argv else ("", [])
    if command in ("help", "--help", "-h"):
        print(USAGE)
        return 0
    if command not in COMMANDS:
        raise UsageError("E_USAGE", "python -m runner", f"one of {', '.join(COMMANDS)}", command or "nothing")
    if command in ("run", "sweep") and {"--help", "-h"} & set(rest):
        print(f"usage: python -m runner {command} key=value …\n\n{(CONFIGS / 'config.yaml').read_text()}", end="")
        return 0
    return COMMANDS[command](rest)


def knobs(argv):
    """Print what an intervention may set."""
    parser = ArgumentParser(prog="python -m runner knobs", description=knobs.__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--schema", action="store_true", help="print the JSON Schema of an intervention")
    chosen = parser.parse_args(argv)
    if chosen.schema:
        print(json.dumps(intervention.artifact_schema(), indent=2))
    elif chosen.json:
        print(json.dumps([_knob_record(knob) for knob in KNOBS.values()], indent=2))
    else:
        rows = [("knob", "domain", "baseline", "decision point", "meaning")]
        for knob in KNOBS.values():
            name = f"{knob.name} *" if knob.candidate else knob.name
            rows.append((name, f"{knob.kind}: {knob.domain}", str(knob.baseline), knob.decision_point, knob.meaning))
        _print_table(rows)
        print("\n* candidate: accepted in the development phase only")


def check(argv):
    """Print what an intervention would execute, or everything that is wrong with it."""
    from runner import config

    parser = ArgumentParser(prog="python -m runner check", description=check.__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="an intervention")
    parser.add_argument("--contract", metavar="NAME", help="default: the one that the artifact names, or quick-v1")
    parser.add_argument("--phase", choices=intervention.PHASES, default="development", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(argv)
    raw = files.read_once(chosen.file, max_bytes=intervention.MAX_BYTES)
    named = _named_contract(raw, chosen.file.name) if chosen.contract is None else chosen.contract
    contract = config.locked_contract(named)
    checked = intervention.check(raw, contract, chosen.phase, where=chosen.file.name)
    status = checked.status
    if status == "no_effect":
        status = "rejected_no_effect" if chosen.phase == "development" else "executed_no_effect"
    record = {
        "status": status,
        "contract": contract.name,
        "effective": checked.effective,
        "inert": list(checked.inert),
        "digests": {"contract": contract.digest, **checked.digests(b"")},
    }
    if chosen.json:
        print(json.dumps(record, indent=2))
    else:
        print(f"status    {status}\ncontract  {contract.name}  {contract.digest}")
        changed = {change["knob"] for change in checked.artifact["changes"]}
        notes = dict.fromkeys(changed, "changed") | dict.fromkeys(checked.inert, "inert, back at the baseline")
        _print_table(
            [("effective knob", "value", ""), *((k, str(v), notes.get(k, "")) for k, v in checked.effective.items())]
        )
        for kind in ("intervention", "proposal"):
            print(f"{kind:<13}{record['digests'][kind]}  (without salt)")
    return 4 if status == "rejected_no_effect" else 0


def run(argv):
    """One run from a JSON artifact; prints where it is and what was digested."""
    from runner import config
    from runner.console import Progress
    from runner.execute import execute, require_complete
    from runner.plan import Request
    from vqkit.formats.run import run_id

    chosen = config.options(argv, config.RUN_OPTIONS, needed=("intervention", "seed"))
    contract = config.composed_contract(chosen)
    raw = files.read_once(Path(chosen["intervention"]), max_bytes=intervention.MAX_BYTES)
    checked = intervention.check(raw, contract, chosen["phase"], where=chosen["intervention"])
    data = _resolve_apart(chosen["data"], Path(chosen["root"]))
    if data.notice:
        print(data.notice, file=sys.stderr)
    salt = os.urandom(32)
    name = run_id(salt, checked.digests(salt), chosen["seed"])
    out = Path(chosen["out"] or Path("runs") / name)
    request = Request(
        intervention=raw,
        contract=contract,
        phase=chosen["phase"],
        seed=chosen["seed"],
        marks=chosen["marks"],
        device=chosen["device"],
        threads=chosen["threads"],
        data=data.folder,
        out=out,
        run_id=name,
        salt=salt,
        budget_seconds=chosen["budget_seconds"],
    )
    progress = Progress()
    try:
        terminal = execute(request, progress)
    finally:
        progress.close()
    manifest = canonical.loads(files.read_once(out / "manifest.json"))["predicate"]
    print(f"{name}  {terminal['state']}  {out}")
    print(f"dataset       {data.id}")
    for kind, value in manifest["digests"].items():
        print(f"{kind:<13} {value}")
    print(f"manifest      {digests.digest('manifest', files.read_once(out / 'manifest.json'))}")
    require_complete(terminal)


def lock(argv):
    """Bind a new contract to its digest in LOCK.json; one that is locked stays as it is."""
    from runner import config
    from vqkit.formats import contract as contracts

    parser = ArgumentParser(prog="python -m runner lock", description=lock.__doc__)
    parser.add_argument("name", metavar="NAME", help="configs/contract/NAME.yaml")
    name = parser.parse_args(argv).name
    contract = contracts.Contract(config.load_yaml(config.contract_file(name)))
    locked = contracts.read_lock()
    if contract.name != name:
        raise Rejected("E_CONTRACT_NAME", f"{name}.yaml", f"name: {name}", contract.name)
    if name in locked:
        contracts.require_locked(contract, locked)
    files.replace(CONFIGS / "contract" / "LOCK.json", canonical.dumps(locked | {name: contract.digest}))
    print(f"{name}  {contract.digest}")


def _resolve_apart(spec, root):
    """``resolve`` in a process of its own, so that what decodes images is not loaded in the process that trains."""
    from runner import ROOT
    from vqkit.data import resolve

    sys.path.append(ROOT)  # where that process, which takes over the path, finds this module
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(resolve, spec, root).result()
    finally:
        sys.path.remove(ROOT)


def _data(argv):
    from runner import data

    return data.main(argv)


def _sign(argv):
    from runner import sign

    return sign.main(argv)


def _repeat(argv):
    from runner import repeat

    return repeat.main(argv)


def _sweep(argv):
    from runner.sweep.host import Host
    from runner.sweep.standby import Standby, wanted

    with Standby(Host(), wanted(argv)) as standby:  # it loads while the rest is read
        from runner import config
        from runner.sweep import command, preset

        chosen, data = preset.choose(argv, standby.host)
        named = dict(argument.split("=", 1) for argument in argv).get("sweep", "calibration")
        where = named if named.endswith((".yaml", ".yml")) else f"configs/sweep/{named}.yaml"
        if chosen["device"] == "cpu" and chosen["executor"]["name"] == "local" and not chosen["dry_run"]:
            standby.start(min(command.slots_of(chosen, standby.host), os.cpu_count() or 1))
        contract = config.composed_contract(chosen)
        return command.sweep(chosen, contract, data.folder, where=where, host=standby.host)


def _status(argv):
    from runner.sweep import command

    return command.status(argv)


def _retry(argv):
    from runner.sweep import command
    from runner.sweep.host import Host
    from runner.sweep.standby import Standby

    with Standby(Host()) as standby:
        return command.retry(argv, standby.host)


COMMANDS = {
    "knobs": knobs,
    "check": check,
    "run": run,
    "sign": _sign,
    "repeat": _repeat,
    "sweep": _sweep,
    "status": _status,
    "retry": _retry,
    "data": _data,
    "lock": lock,
}


def _named_contract(raw, where):
    """The contract that an artifact names, or the default where it names none that could be loaded."""
    from runner.config import names

    value, _ = canonical.parse(raw, where=where, max_bytes=intervention.MAX_BYTES)
    name = value.get("contract") if isinstance(value, dict) else None
    return name if name in names("contract") else "quick-v1"


def _knob_record(knob):
    record = {"name": knob.name, "kind": knob.kind, "baseline": knob.baseline, "decision_point": knob.decision_point}
    bounds = (
        {"choices": list(knob.choices)} if knob.choices else {"low": knob.low, "high": knob.high, "scale": knob.scale}
    )
    return record | bounds | {"candidate": knob.candidate, "meaning": knob.meaning}


def _print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))

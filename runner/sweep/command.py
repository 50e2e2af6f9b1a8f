"""The commands of a campaign: ``sweep`` plans or continues one, ``status`` looks at it, ``retry`` tries failures again.

The order of a sweep: resolve the definition → terms → plan, or hold the plan that is there against the terms → let
the executor work until every cell has an outcome → say what became of them.
"""

import contextlib
import json
import os
import statistics
import sys
from pathlib import Path

from runner import settings
from runner.sweep import calibrated, cells, definition, local, outcomes, plan, ray, slurm, waiting
from runner.sweep.estimate import estimate, probe
from runner.sweep.host import Host
from runner.sweep.progress import Progress
from vqkit.errors import ArgumentParser, Incomplete, Rejected, RunFailed, UsageError, raise_all
from vqkit.formats import campaign, canonical, dataset, files, schema

EXECUTORS = {"local": local, "slurm": slurm, "ray": ray}
LAUNCH = "launch.json"  # how the campaign was started last: data, executor and limits, for `retry`; bound by nothing

_LAUNCH = schema.closed(
    executor={"type": "object", "required": ["name", "slots"], "properties": {"slots": schema.POSITIVE}},
    data={"type": "string"},
    budget_seconds={"type": ["number", "null"]},
)


@contextlib.contextmanager
def _file_errors():
    """What the file system refuses is an error with a name, like any other."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        expected = "a file or a folder that can be opened, made or moved"
        raise Rejected("E_FILE_ACCESS", str(error.filename), expected, error.strerror) from error


@_file_errors()
def sweep(options, contract, data, *, where="sweep", host=None):
    """Plan the campaign that ``options`` describe, or continue it, until every cell has an outcome.

    Args:
        options: plain data: ``sweep`` (the definition), ``out``, ``device``, ``threads``, ``phase``, ``seeds``,
            ``marks``, ``calibration`` (a file, or none), ``executor`` {name, slots, timeout_seconds, the executor's
            own}, ``budget_seconds``, ``dry_run``.
        contract: a ``Contract``, held against its lock by the caller.
        data: the folder of a canonical dataset.
        where: how error messages name the sweep definition, usually its file.
        host: a ``Host``.

    Returns:
        0 when each cell has an outcome, failures included. Standard output is the folder alone, for scripts; what
        people read goes to standard error.

    Raises:
        Rejected, Refused, UsageError: before anything is written.
        RunFailed: E_RUN_CANCELLED when it was interrupted; the same command goes on.
        Incomplete: workers can't be kept alive.
    """
    host = host or Host()
    terms = terms_of(options, contract, data, where, host)
    if terms.calibration:
        for notice in calibrated.unused(options["sweep"], options["seeds"], options["marks"]):
            print(f"notice: {notice}", file=sys.stderr)
    slots = slots_of(options, host)
    executor = {**options["executor"], "slots": slots}
    if options["dry_run"]:
        _print_estimate(terms, estimate(terms, slots, *probe(terms, host, data)), slots)
        return 0
    folder = Path(options["out"] or Path("results") / f"{terms.sweep.name}-{contract.name}-{terms.dataset['id']}")
    if folder.name in ("", ".."):
        expected = "a folder with a name of its own: a campaign appears under it as a whole, or not at all"
        raise UsageError("E_USAGE", "out", expected, str(folder))
    is_new = not campaign.is_there(folder)
    if is_new:
        _require_executor(executor)
        plan.create(folder, terms)  # where another process is faster, its plan is the one that counts
    planned = plan.require_same(folder, terms)
    for notice in plan.spent_seeds(folder, planned):
        print(f"notice: {notice}", file=sys.stderr)
    launch = {
        "executor": executor,
        "data": str(Path(data).resolve()),
        "budget_seconds": options["budget_seconds"],
    }
    return _work(folder, planned, launch, host, is_asked=is_new)


@_file_errors()
def status(argv):
    """Print the state of a campaign, from any shell at any time; nothing is written."""
    parser = ArgumentParser(prog="python -m runner status", description="Say how far a campaign is.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of a campaign")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(argv)
    planned, _ = campaign.read(chosen.folder, campaign.CAMPAIGN)
    state = state_of(chosen.folder, planned)
    if chosen.json:
        print(json.dumps(state, indent=2))
    else:
        _print_state(state, sys.stdout)
    return 0


@_file_errors()
def retry(argv, host=None):
    """Run every cell that did not end complete again; the old attempts are kept in attempts/."""
    text = "Run every cell of a campaign that did not end complete again."
    parser = ArgumentParser(prog="python -m runner retry", description=text)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of a campaign")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the canonical dataset, if it lies elsewhere now")
    parser.add_argument("--slots", type=int, metavar="N", help="cells at once; default: as last time")
    parser.add_argument("--timeout-seconds", type=float, metavar="S", help="for one cell; default: as last time")
    text = "of training, for one cell; default: as last time"
    parser.add_argument("--budget-seconds", type=float, metavar="S", help=text)
    chosen = parser.parse_args(argv)
    host = host or Host()
    given = {"slots": chosen.slots, "timeout_seconds": chosen.timeout_seconds, "budget_seconds": chosen.budget_seconds}
    given = {key: value for key, value in given.items() if value is not None}
    rules = {f"--{key.replace('_', '-')}": rule for key, rule in (settings.OPTIONS | settings.LOCAL).items()}
    flags = {f"--{key.replace('_', '-')}": value for key, value in given.items()}
    raise_all(UsageError, settings.problems(flags, rules, code="E_USAGE"))
    planned, _ = campaign.read(chosen.folder, campaign.CAMPAIGN)
    launch = _read_launch(chosen.folder)
    launch["data"] = str(chosen.data or launch["data"])
    launch["budget_seconds"] = given.pop("budget_seconds", launch["budget_seconds"])
    launch["executor"] |= given
    raise_all(UsageError, settings.executor_problems(launch["executor"]))
    plan.require_here(chosen.folder, planned, Path(launch["data"]), host)
    found, watch = _look(chosen.folder, planned)
    is_asked = outcomes.count(found)[0] < len(found)
    if is_asked:
        _require_executor(launch["executor"])
    cells.make_folders(chosen.folder)
    taken = outcomes.set_aside(chosen.folder, found, watch)
    kept = f"what they left is in {chosen.folder / campaign.ATTEMPTS}" if taken else "none failed"
    print(f"{len(taken)} cells are tried again; {kept}", file=sys.stderr)
    return _work(chosen.folder, planned, launch, host, is_asked=is_asked)


def _read_launch(folder):
    """How the campaign was started last."""
    if not (folder / LAUNCH).exists():
        raise Incomplete("E_STAGE_MISSING", LAUNCH, "the file (start the sweep first)", "nothing")
    launch = canonical.loads(files.read_once(folder / LAUNCH, max_bytes=1 << 16), where=LAUNCH)
    raise_all(Rejected, schema.problems(launch, _LAUNCH, LAUNCH))
    raise_all(Rejected, settings.executor_problems(launch["executor"]))
    return launch


def slots_of(options, host):
    """The cells that run at once; unless said otherwise one for each CUDA device, or as many as the cores allow."""
    if options["executor"]["slots"]:
        return options["executor"]["slots"]
    if options["device"] == "cuda":
        return max(1, host.cuda_devices())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // options["threads"])


def terms_of(options, contract, data, where, host):
    """Everything that the campaign binds, every rule held."""
    counts = dataset.contract_counts(contract)
    opened = dataset.open_dataset(Path(data), counts)
    contract.require_dataset(opened.id)
    pixels = {"id": opened.id, "digest": opened.digest(counts)}
    environment = host.environment(options["device"], options["threads"])
    seeds, marks, prescribed = options["seeds"], options["marks"], None
    if options.get("calibration"):
        kept = contract, pixels, options["device"], environment, options["phase"], seeds, marks
        prescribed = calibrated.read(options["calibration"], *kept)
        seeds = prescribed.seeds if seeds is None else seeds
        marks = prescribed.marks if marks is None else marks
    resolved = definition.resolve(options["sweep"], contract, options["phase"], where=where, seeds=seeds, marks=marks)
    return plan.Terms(
        sweep=resolved,
        contract=contract,
        phase=options["phase"],
        dataset=pixels,
        calibration=prescribed.record if prescribed else None,
        device=options["device"],
        threads=options["threads"],
        source=host.source(),
        environment=environment,
    )


def _require_executor(executor):
    """Raise ``UsageError`` (E_EXECUTOR) where the executor can't start."""
    EXECUTORS[executor["name"]].check(executor)


def _work(folder, planned, launch, host, *, is_asked):
    """Let the executor work if there is work, then say what became of the cells; ``is_asked`` whether it can start."""
    found = scan(folder, planned)
    complete, failed, missing = outcomes.count(found)
    if missing:
        outcomes.require_open(folder)
        if not is_asked:
            _require_executor(launch["executor"])
        cells.make_folders(folder)
        files.replace(folder / LAUNCH, canonical.dumps(launch))
        executor = launch["executor"]
        job = local.Job(
            folder=folder,
            run_ids=tuple(found),
            data=Path(launch["data"]),
            device=planned["device"],
            threads=planned["threads"],
            slots=executor["slots"],
            timeout_seconds=executor["timeout_seconds"],
            budget_seconds=launch["budget_seconds"],
            options=executor,
        )
        progress = Progress(len(found), complete + failed, failed)
        try:
            EXECUTORS[executor["name"]].run(job, host, progress)
        except KeyboardInterrupt as stop:
            done = f"{progress.done} of {len(found)} cells done; the same command goes on from there"
            found = f"an interrupt, {'; '.join([done, *stop.args])}"
            raise RunFailed("E_RUN_CANCELLED", str(folder), "every cell", found) from None
        finally:
            progress.close()
    state = state_of(folder, planned)
    _print_state(state, sys.stderr)
    print(folder)
    if state["missing"]:
        raise Incomplete("E_CAMPAIGN_INCOMPLETE", str(folder), "every cell", f"{state['missing']} missing")
    return 0


def scan(folder, planned):
    """run id → Outcome of every cell, after the ledger's chain was checked."""
    campaign.ledger_events(folder)
    return _look(folder, planned)[0]


def _look(folder, planned):
    """(run id → Outcome, the ledger as it is now)."""
    watch = cells.Watch(folder)
    watch.refresh()
    return outcomes.outcomes(folder, planned, watch), watch


def state_of(folder, planned):
    """What ``status --json`` prints."""
    found, watch = _look(folder, planned)
    complete, failed, missing = outcomes.count(found)
    running = outcomes.running(folder, watch)
    speed, left = _speed(planned, cells.reports(folder, running), watch.seconds, missing)
    states = [outcome.state for outcome in found.values()]
    return {
        "campaign": planned["name"],
        "folder": str(folder),
        "phase": planned["phase"],
        "contract": planned["contract"]["name"],
        "dataset": planned["dataset"]["id"],
        "device": planned["device"],
        "planned": len(found),
        "complete": complete,
        "failed": failed,
        "missing": missing,
        "states": {state: states.count(state) for state in campaign.OUTCOMES if state in states},
        "running": running,
        "images_per_second": speed,
        "seconds_left": left,
        "failures": [
            {"run_id": run_id, "state": outcome.state, "reason": outcome.reason, "log": outcome.log}
            for run_id, outcome in found.items()
            if outcome.state not in ("complete", "missing")
        ],
        "foreign": outcomes.foreign(folder, planned),
        "held_up": list(waiting.held_up(folder, running)),
        "frozen": watch.frozen or (folder / campaign.FROZEN).exists(),
        "unblinded": (folder / campaign.UNBLINDED).exists(),
    }


def _speed(planned, reports, seconds, missing):
    """(images a second of all cells at work, seconds until the last cell is done or None where nobody knows)."""
    speed = sum(at["images_per_second"] for at in reports.values())
    images = max(planned["marks"]) * planned["contract"]["data"]["train"]["count"]
    begun = [at for at in reports.values() if at["images_per_second"]]
    if not reports or not (seconds or begun):
        return round(speed, 1), None
    one = statistics.fmean(seconds) if seconds else images * len(begun) / speed
    done = sum(at["epoch"] / max(1, at["epochs"]) for at in reports.values())
    return round(speed, 1), round((missing - done) * one / len(reports), 1)


def _print_state(state, stream):
    def print_line(text):
        print(text, file=stream)

    print_line(f"{state['campaign']}  {state['contract']}  {state['dataset']}  {state['device']}  {state['folder']}")
    print_line(
        f"{state['planned']} planned = {state['complete']} complete + {state['failed']} failed "
        f"+ {state['missing']} missing ({len(state['running'])} running)"
    )
    if state["running"]:
        left = "time left unknown" if state["seconds_left"] is None else f"about {state['seconds_left']:,.0f} s left"
        print_line(f"{state['images_per_second']:,.0f} images/s, {left}")
    for text in state["held_up"]:
        print_line(f"held up by {text}")
    if state["foreign"]:
        print_line(f"no cells of this campaign, in {campaign.RUNS}/: {', '.join(state['foreign'])}")
    for failure in state["failures"]:
        print_line(f"{failure['run_id']}  {failure['state']}: {failure['reason']}")
        for line in failure["log"].splitlines():
            print_line(f"    {line}")


def _print_estimate(terms, cost, slots):
    print(f"{terms.sweep.name}  {terms.contract.name}  {terms.dataset['id']}  {terms.device}, {terms.phase}")
    for arm in terms.sweep.arms:
        changes = (f"{change['knob']} {change['from']} → {change['to']}" for change in arm.checked.artifact["changes"])
        print(f"  {arm.label:<32}  {', '.join(changes) or 'reference'}")
    print(f"{cost['arms']} arms × {cost['seeds']} seeds = {cost['cells']} cells, marks {list(terms.sweep.marks)}")
    print(f"{cost['epochs']:,} epochs, {cost['images']:,} training images")
    known = cost["reason"] is None
    took = f"about {cost['seconds'] / 60:,.1f} minutes" if known else f"time unknown (a probe ended {cost['reason']})"
    print(f"{took} in {slots} slots, {cost['disk_bytes'] / 2**20:,.0f} MiB of evidence")

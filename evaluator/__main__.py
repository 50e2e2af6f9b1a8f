"""``python -m evaluator``: verify a run, score, unblind."""

import json
import sys
from pathlib import Path

from evaluator import score, unblind
from evaluator.held import Held
from evaluator.verify import climb
from vqkit.errors import (
    ArgumentParser,
    Incomplete,
    Rejected,
    RunFailed,
    UsageError,
    VerificationFailed,
    guarded,
    raise_all,
)
from vqkit.formats import campaign, canonical, dataset, files, run

# Terminal state → the code that says why a run did not get as far as a verification was asked to go.
_STATE_CODES = {
    "nonfinite": "E_RUN_NONFINITE",
    "invalid": "E_RUN_INVALID",
    "cancelled": "E_RUN_CANCELLED",
    "budget_exceeded": "E_RUN_BUDGET",
    "error": "E_RUN_ERROR",
}


def main(argv):
    options = _parser().parse_args(argv)
    return options.command(options)


def verify(options):
    """Print the verdict on one run; exit 6 when a check failed, 5 or 7 when the level asked for is out of reach."""
    verdict = climb(options.run, _held(options, options.run), level=options.level)
    print(json.dumps(verdict.to_json()) if options.json else verdict.table())
    raise_all(VerificationFailed, verdict.failures())
    if not verdict.reached and verdict.state != "complete":
        code = _STATE_CODES[verdict.state]
        raise RunFailed(code, verdict.name, f"a complete run for {options.level}", f"{verdict.state}, {verdict.level}")
    raise_all(Incomplete, verdict.gaps(options.level))


def score_folder(options):
    """Score a campaign or one run."""
    held = _held(options, options.folder)
    if held.data is None:
        expected = "the dataset of the plan: --data DIR, or prepared under ./data"
        raise UsageError("E_USAGE", "score", expected, "neither")
    if not (options.folder / campaign.CAMPAIGN).exists():
        value, path = score.score_run(options.folder, held)
        _show(options, value, f"{value['run_id']}: {value['state']}, {value['verification']['level']}, {path}")
        return
    frozen, failures = score.score_campaign(options.folder, held, final=options.final)
    counts = "planned {planned} = complete {complete} + failed {failed} + missing {missing}".format_map(frozen)
    _show(options, frozen, f"{counts}; scores frozen in {campaign.FROZEN}")
    raise_all(VerificationFailed, failures)


def unblind_folder(options):
    """Open what was sealed, after the scores are frozen."""
    if not (options.folder / campaign.CAMPAIGN).exists():
        value = unblind.unblind_run(options.folder)
        _show(options, value, f"{value['run_id']}: {value['status']}, {json.dumps(value['effective'])}")
        return
    value = unblind.unblind_campaign(options.folder)
    lines = [f"{cell['run_id']}  {cell['arm']}" for cell in value["cells"]]
    _show(options, value, "\n".join(lines))


def _show(options, value, text):
    print(json.dumps(value) if options.json else text)


def _held(options, folder):
    """What the verifier holds; without --data, the prepared dataset under ./data that the folder's plan names.

    Which one is opened proves nothing: its digest is recomputed and compared with the plan's.
    """
    return Held(data=options.data or _named_data(folder), source=options.source, lock=options.lock)


def _named_data(folder):
    try:
        if (folder / campaign.CAMPAIGN).exists():
            plan, _ = campaign.read(folder, campaign.CAMPAIGN)
        else:
            plan, _ = run.parse_plan(files.read_once(folder / run.PLAN, max_bytes=canonical.MAX_BYTES))
    except Rejected:
        return None
    prepared = Path("data") / plan["dataset"]["id"]
    return prepared if (prepared / dataset.CARD).is_file() else None


def _parser():
    parser = ArgumentParser(prog="python -m evaluator", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("verify", help="climb the verification ladder with one run")
    command.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    command.add_argument("--level", choices=campaign.LEVELS[1:-1], default="V3", help="how far to go (V3)")
    _inputs(command)
    command.set_defaults(command=verify)

    command = commands.add_parser("score", help="verify to V3 and write scores, blind to the arm")
    command.add_argument("folder", type=Path, metavar="DIR", help="a campaign or a run folder")
    command.add_argument("--final", action="store_true", help="declare cells without an outcome missing")
    _inputs(command)
    command.set_defaults(command=score_folder)

    command = commands.add_parser("unblind", help="map frozen scores to arms")
    command.add_argument("folder", type=Path, metavar="DIR", help="a campaign or a run folder")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=unblind_folder)
    return parser


def _inputs(command):
    command.add_argument(
        "--data", type=Path, metavar="DIR", help="the verifier's own canonical dataset (./data/<its id>)"
    )
    command.add_argument("--source", type=Path, metavar="DIR", help="the verifier's source tree (this one)")
    command.add_argument(
        "--lock", type=Path, metavar="FILE", help="contract name to digest (configs/contract/LOCK.json)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))

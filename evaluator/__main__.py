"""``python -m evaluator verify | digest | score | unblind | reproduce``."""

import json
import os
import re
import sys
from argparse import ArgumentTypeError
from collections import Counter
from pathlib import Path

from evaluator import reproduce, score, unblind
from evaluator.held import Folder, Held
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
from vqkit.formats import campaign, canonical, dataset, digests, files, run
from vqkit.formats.schema import DIGEST


def main(argv):
    options = _parser().parse_args(argv)
    return options.command(options)


def verify(options):
    """Print the verdict on one run; exit 6 when a check failed, 5 or 7 when the level asked for is out of reach."""
    verdict = climb(options.run, _held(options, options.run), level=options.level, kept=options.expect)
    _conclude(options, verdict, options.level)


def reproduce_run(options):
    """Retrain and compare (V5); exit 6 when the evidence is another, 7 when it could not be retrained."""
    verdict = reproduce.reproduce(
        options.run, _held(options, options.run), device=options.device, python=options.python
    )
    _conclude(options, verdict, "V5")


def _conclude(options, verdict, level):
    """Print a verdict, and raise what it means for the level that was asked for."""
    print(json.dumps(verdict.to_json()) if options.json else verdict.table())
    raise_all(VerificationFailed, verdict.failures())
    if not verdict.reached and verdict.state != "complete":
        code = run.STATE_CODES[verdict.state]
        raise RunFailed(code, verdict.name, f"a complete run for {level}", f"{verdict.state}, {verdict.level}")
    raise_all(Incomplete, verdict.gaps(level))


def digest(options):
    """Print one line to keep elsewhere: the digest of a run's manifest, or the head of a campaign's ledger.

    With --expect, a manifest must have that digest; a ledger may have grown since, but must have had that head.
    """
    folder = options.folder
    if _is_campaign(folder):
        name = campaign.read(folder, campaign.CAMPAIGN)[0]["name"]
        heads = campaign.ledger_heads(campaign.ledger_events(folder))
        line = f"{name} ledger {heads[-1]} {len(heads) - 1} events"
    else:
        with Folder(folder) as opened:
            if opened.mode(run.MANIFEST) is None:
                raise Incomplete("E_RUN_INCOMPLETE", folder.name, f"{run.MANIFEST}, written last", "none")
            data = opened.read(run.MANIFEST, canonical.MAX_BYTES)
        heads = [digests.digest("manifest", data)]
        line = f"{run.parse_manifest(data)['predicate']['run_id']} manifest {heads[-1]}"
    print(line)
    if options.expect not in (None, *heads):
        raise VerificationFailed("E_VERIFY", folder.name, options.expect, line)


def score_folder(options):
    """Score a campaign or one run."""
    whole = _is_campaign(options.folder)
    held = _held(options, options.folder)
    if held.data is None:
        expected = "the dataset of the plan: --data DIR, or prepared under ./data"
        raise UsageError("E_USAGE", "score", expected, "neither")
    if not whole:
        value, path = score.score_run(options.folder, held, level=options.level)
        head = f"{value['run_id']}: {value['state']}, {value['verification']['level']}, {path}"
        _show(options, value, "\n".join([head, *_marks_table(value["marks"])]))
        return
    frozen, failures = score.score_campaign(options.folder, held, level=options.level, final=options.final)
    counts = "planned {planned} = complete {complete} + failed {failed} + missing {missing}".format_map(frozen)
    _show(options, frozen, f"{counts}; scores frozen in {campaign.FROZEN}")
    raise_all(VerificationFailed, failures)


def _marks_table(marks):
    """Lines of a table of what was measured at each mark; none without marks."""
    names = ("mark", "normalized_perplexity", "utilization", "psnr", "ssim")
    if not marks:
        return []
    rows = [names, *([f"{mark[name]:.4g}" for name in names] for mark in marks)]
    return ["  ".join(text.ljust(len(name)) for text, name in zip(row, names, strict=True)).rstrip() for row in rows]


def unblind_folder(options):
    """Open what was sealed, after the scores are frozen."""
    if not _is_campaign(options.folder):
        value = unblind.unblind_run(options.folder)
        _show(options, value, f"{value['run_id']}: {value['status']}, {json.dumps(value['effective'])}")
        return
    value = unblind.unblind_campaign(options.folder)
    cells = Counter(cell["arm"] for cell in value["cells"])
    arms = ", ".join(f"{arm['label']} ({cells[arm['label']]} cells)" for arm in value["arms"])
    _show(options, value, f"unblinded in {campaign.UNBLINDED}: {arms}")


def _is_campaign(folder):
    """Whether a folder that may be either holds a campaign, not a run; raises ``Rejected`` where it holds neither."""
    if any(os.path.lexists(folder / name) for name in (run.PLAN, run.MANIFEST)):
        return campaign.is_there(folder)
    campaign.require_there(folder, f", or of a run, with {run.PLAN}")
    return True


def _show(options, value, text):
    print(json.dumps(value) if options.json else text)


def _held(options, folder):
    """What the verifier holds; without --data, the prepared dataset under ./data that the folder's plan names.

    Which one is opened proves nothing: its digest is recomputed and compared with the plan's.
    """
    data = options.data or _named_data(folder)
    return Held(data=data, source=options.source, lock=options.lock, key=options.key, all_images=options.all_images)


def _named_data(folder):
    try:
        if campaign.is_there(folder):
            plan, _ = campaign.read(folder, campaign.CAMPAIGN)
        else:
            plan, _ = run.parse_plan(files.read_once(folder / run.PLAN, max_bytes=canonical.MAX_BYTES))
    except Rejected:
        return None
    prepared = Path("data") / plan["dataset"]["id"]
    return prepared if (prepared / dataset.CARD).is_file() else None


def _parser():
    text = "Verify runs and score them, without trusting whoever made them."
    parser = ArgumentParser(prog="python -m evaluator", description=text)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("verify", help="climb the verification ladder with one run")
    command.add_argument("run", type=_path, metavar="RUN", help="a run folder")
    command.add_argument("--level", choices=campaign.LEVELS[1:-1], default="V3", help="how far to go (V3)")
    command.add_argument("--expect", type=_digest, metavar="DIGEST", help="the manifest digest that was kept")
    _inputs(command)
    command.set_defaults(command=verify)

    command = commands.add_parser("digest", help="one line to keep: a run's manifest or a campaign's ledger head")
    command.add_argument("folder", type=_path, metavar="DIR", help="a campaign or a run folder")
    command.add_argument("--expect", type=_digest, metavar="DIGEST", help="the digest that was kept")
    command.set_defaults(command=digest)

    command = commands.add_parser("score", help="verify to V3 and write scores, blind to the arm")
    command.add_argument("folder", type=_path, metavar="DIR", help="a campaign or a run folder")
    command.add_argument("--level", choices=("V3", "V4"), default="V3", help="how far each run is verified (V3)")
    command.add_argument("--final", action="store_true", help="declare cells without an outcome missing")
    _inputs(command)
    command.set_defaults(command=score_folder)

    command = commands.add_parser("unblind", help="map frozen scores to arms")
    command.add_argument("folder", type=_path, metavar="DIR", help="a campaign or a run folder")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=unblind_folder)

    command = commands.add_parser("reproduce", help="train once more from the plan and compare (V5); unblinds the run")
    command.add_argument("run", type=_path, metavar="RUN", help="a run folder")
    command.add_argument("--device", choices=("cpu", "cuda"), help="another device than the plan's")
    command.add_argument("--python", default=sys.executable, metavar="FILE", help="an interpreter that has the runner")
    _inputs(command)
    command.set_defaults(command=reproduce_run)
    return parser


def _path(text):
    """A path with a name of its own, also where ``.`` was given; links in it stay links."""
    return Path(os.path.abspath(text))


def _digest(line):
    """The one digest in a text: alone, or in the line that ``digest`` printed."""
    found = [word for word in line.split() if re.fullmatch(DIGEST["pattern"], word)]
    if len(found) != 1:
        raise ArgumentTypeError(f"{line!r} is no digest (sha256: and 64 hexadecimal digits), nor a line with one")
    return found[0]


def _inputs(command):
    command.add_argument(
        "--data", type=Path, metavar="DIR", help="the verifier's own canonical dataset (./data/<its id>)"
    )
    command.add_argument("--source", type=Path, metavar="DIR", help="the verifier's source tree (this one)")
    command.add_argument(
        "--lock", type=Path, metavar="FILE", help="contract name to digest (configs/contract/LOCK.json)"
    )
    command.add_argument("--key", type=Path, metavar="FILE", help="the public key that signed the manifest")
    command.add_argument("--all-images", action="store_true", help="V4: replay every image, not the 64 drawn")
    command.add_argument("--json", action="store_true", help="print JSON")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))

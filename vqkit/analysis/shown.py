"""What a report shows beyond the numbers that decide: code counts, training curves and reconstructions of a few arms.

Opened are the scores and exhibits of the arms that are asked for, and ``setting.json``; each must have the digest that
the results table or ``frozen.json`` names.
"""

from dataclasses import dataclass

import numpy as np

from vqkit.errors import Refused
from vqkit.formats import campaign, digests, files
from vqkit.formats.contract import METRICS, QUALITY
from vqkit.formats.run import STEP_COLUMNS

MOST_RUNS = 64  # of an arm that are opened: a picture needs no more


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the pictures of one arm are drawn from; S is its completed runs, E the epochs, T the marks.

    Attributes:
        counts: int64 [S, K] at the mark of the report.
        curves: column of the step log → float64 [S, E], mean over each epoch; empty where no run has an exhibit.
        marks: metric → float64 [S, T].
        samples: seed → uint8 [n, 32, 32, 3], reconstructions at the mark of the report.
    """

    counts: np.ndarray
    curves: dict
    marks: dict
    samples: dict


def read_arm(folder, table, arm, mark):
    """The ``Shown`` of an arm, of at most ``MOST_RUNS`` runs.

    Raises:
        Refused: E_ANALYSIS_BINDING where a score or an exhibit is not the one that the table names.
    """
    mine = table[(table["arm"] == arm) & ~table["imputed"]]
    here = mine[mine["mark"] == mark].head(MOST_RUNS)
    mine = mine[mine["run_id"].isin(here["run_id"])]
    counts, curves, samples = [], [], {}
    for row in here.itertuples():
        score = _bound(folder, campaign.SCORES, row.run_id, "score", row.digest_score, campaign.parse_score)
        counts += [entry["counts"] for entry in score["marks"] if entry["mark"] == mark]
        if isinstance(row.digest_exhibit, str) and row.digest_exhibit:
            exhibit = read_exhibit(folder, row.run_id, row.digest_exhibit)
            curves.append(exhibit["curve"])
            for sample in exhibit["samples"]:
                if sample["mark"] == mark:
                    samples[row.seed] = campaign.text_to_images(sample["reconstruction"])
    return Shown(
        counts=np.array(counts, dtype=np.int64).reshape(len(counts), -1),
        curves={name: np.array([curve[name] for curve in curves], dtype=np.float64) for name in STEP_COLUMNS}
        if curves
        else {},
        marks={
            metric: mine[metric].to_numpy(dtype=np.float64).reshape(len(here), -1) for metric in (*METRICS, *QUALITY)
        },
        samples=samples,
    )


def read_exhibit(folder, run_id, bound):
    """The exhibit of a run, which must have the digest ``bound``."""
    return _bound(folder, campaign.EXHIBITS, run_id, "exhibit", bound, campaign.parse_exhibit)


def read_setting(folder, bound, environment):
    """``setting.json``, which must have the digest ``bound``, and its facts the campaign's ``environment`` digest."""
    setting, data = campaign.read(folder, campaign.SETTING)
    _require(campaign.SETTING, bound, digests.digest("exhibit", data))
    if setting["environment"] is not None:
        found = digests.digest_json("environment", setting["environment"])
        _require(f"{campaign.SETTING} environment", environment, found)
    return setting


def _bound(folder, place, run_id, kind, bound, parse):
    path = folder / place / f"{run_id}.json"
    data = files.read_once(path, max_bytes=campaign.MAX_BYTES)
    _require(f"{place}/{path.name}", bound, digests.digest(kind, data))
    return parse(data, path.name)


def _require(where, bound, found):
    if found != bound:
        raise Refused("E_ANALYSIS_BINDING", where, bound, found)

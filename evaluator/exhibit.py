"""What people want to see of a run beyond its score: how it trained, and a few of its reconstructions.

Computed from the same verified bytes as the score, which names it by digest. Nothing is decided by it.
"""

import math

from vqkit.errors import VerificationFailed, raise_all
from vqkit.formats import campaign, canonical, digests, run, schema


def of_run(evidence, measured):
    """The exhibit of a complete run as bytes.

    Args:
        evidence: an ``Evidence`` that passed V0 to V3.
        measured: mark → tensors of its file.
    """
    positions = campaign.shown(evidence.contract.evaluation_count)
    value = {
        "schema": "vqkit.exhibit/1",
        "run_id": evidence.plan["run_id"],
        "curve": curve(evidence.tensors[run.STEPS], evidence.contract.steps_per_epoch),
        "samples": [
            {"mark": mark, "reconstruction": campaign.images_to_text(arrays["reconstruction"][positions])}
            for mark, arrays in measured.items()
            if mark > 0
        ],
    }
    raise_all(VerificationFailed, schema.problems(value, campaign.EXHIBIT_SCHEMA, campaign.EXHIBITS))
    return canonical.dumps(value)


def curve(steps, per_epoch):
    """Column of the step log → its mean over each epoch, in float64; None where JSON can't carry it (above 2^53 − 1).

    The sum is exact (rounded once), so that every implementation finds the same number.
    """
    return {
        name: [_mean(epoch, per_epoch) for epoch in steps[name].reshape(-1, per_epoch).tolist()]
        for name in run.STEP_COLUMNS
    }


def _mean(values, count):
    mean = math.fsum(values) / count + 0.0  # + 0.0: never minus zero
    return mean if abs(mean) < 2**53 else None


def setting(verdicts, images):
    """``setting.json`` as bytes: what all runs of a campaign share.

    Args:
        verdicts: of the runs; the environment's facts are those of the first that was verified (their digest is the
            campaign's), null where none was.
        images: the verifier's evaluation images.
    """
    facts = [verdict.plan["environment"] for verdict in verdicts if verdict.status == "passed"]
    positions = campaign.shown(len(images))
    value = {
        "schema": "vqkit.setting/1",
        "environment": facts[0] if facts else None,
        "images": positions,
        "originals": campaign.images_to_text(images[positions]),
    }
    return campaign.encode(campaign.SETTING, value)


def digest(data):
    """The digest of an exhibit or a setting as written."""
    return digests.digest("exhibit", data)

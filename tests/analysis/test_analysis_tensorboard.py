"""Event files: TensorBoard's own reader finds every mean of the exhibits and every measurement of the table."""

import builtins
import json

import pandas as pd
import pytest
import simulate
from simulate import arm
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vqkit.analysis.__main__ import main
from vqkit.errors import Incomplete, Refused, UsageError

ARMS = [arm("better", 0.1), arm("worse", -0.1)]


@pytest.fixture
def folder(tmp_path):
    states = {("worse", 1): "nonfinite"}
    return simulate.write_campaign(tmp_path / "c", ARMS, seeds=6, states=states, exhibits=True)


def test_it_reads_back(folder):
    main(["calibrate", str(folder)])
    main(["report", str(folder), "--tensorboard"])
    table = pd.read_csv(folder / "results.csv")
    places = {path.parent.relative_to(folder / "tensorboard") for path in (folder / "tensorboard").rglob("events*")}
    complete = table[~table["imputed"]]
    assert {str(place) for place in places} == {f"{row.arm}/seed-{row.seed}" for row in complete.itertuples()}
    assert len(places) == 17
    for arm_label, seed in (("reference", 101), ("better", 106), ("worse", 103)):
        read = EventAccumulator(str(folder / "tensorboard" / arm_label / f"seed-{seed}"))
        read.Reload()
        rows = complete[(complete["arm"] == arm_label) & (complete["seed"] == seed)]
        exhibit = json.loads((folder / "exhibits" / f"{rows['run_id'].iloc[0]}.json").read_bytes())
        wanted = {f"training/{name}": dict(enumerate(means, 1)) for name, means in exhibit["curve"].items()}
        for metric in ("normalized_perplexity", "utilization", "mse", "psnr", "ssim"):
            wanted[f"evaluation/{metric}"] = dict(zip(rows["mark"], rows[metric], strict=True))
        assert set(read.Tags()["scalars"]) == wanted.keys()
        for tag, values in wanted.items():
            found = {event.step: event.value for event in read.Scalars(tag)}
            assert found == pytest.approx(values, rel=1e-6), tag


def test_the_same_campaign_gives_the_same_bytes(folder):
    main(["calibrate", str(folder)])
    main(["report", str(folder), "--tensorboard"])
    place = folder / "tensorboard" / "better" / "seed-101" / "events.out.tfevents.0.vqkit"
    before = place.read_bytes()
    main(["report", str(folder), "--tensorboard"])
    assert place.read_bytes() == before
    assert len(list((folder / "tensorboard").rglob("events*"))) == 17


@pytest.mark.parametrize("calibrated", [False, True])
def test_nothing_is_exported_without_unblinding(folder, calibrated):
    """Neither before the calibration, which needs the arms, nor where the map of the arms is gone again."""
    if calibrated:
        main(["calibrate", str(folder)])
    (folder / "unblinded.json").unlink()
    with pytest.raises(Incomplete) as caught:
        main(["report", str(folder), "--tensorboard"])
    assert set(caught.value.codes) == {"E_STAGE_MISSING"}
    assert not (folder / "tensorboard").exists()
    with pytest.raises(Incomplete):
        main(["calibrate", str(folder)])


def test_a_changed_exhibit_is_refused(folder):
    main(["calibrate", str(folder)])
    for path in (folder / "exhibits").iterdir():
        path.chmod(0o644)
        path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(Refused) as caught:
        main(["report", str(folder), "--tensorboard"])
    assert set(caught.value.codes) == {"E_ANALYSIS_BINDING"}


def test_without_the_extra_nothing_is_written(folder, monkeypatch):
    main(["calibrate", str(folder)])
    real = builtins.__import__

    def absent(name, *arguments):
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UsageError) as caught:
        main(["report", str(folder), "--tensorboard"])
    assert "the extra `tensorboard`" in str(caught.value)
    assert not (folder / "report.html").exists()

"""Training curves and measurements of every run as TensorBoard event files, from exhibits and the results table.

    DIR/tensorboard/ARM/seed-N/events.out.tfevents.0.vqkit

Written with TensorBoard's own record writer (extra ``tensorboard``, no torch). The step of every value is its epoch.
Events carry no time of their own, so that the same campaign gives the same bytes.
"""

import io
import shutil

from vqkit.analysis import shown
from vqkit.errors import UsageError
from vqkit.formats import files
from vqkit.formats.contract import METRICS, QUALITY

FOLDER, EVENTS = "tensorboard", "events.out.tfevents.0.vqkit"


def write(folder, table):
    """Write the event files of every completed run of an unblinded campaign anew; returns their folder's name.

    Raises:
        Refused: E_ANALYSIS_BINDING where an exhibit is not the one that the table names.
    """
    writer, protos = require()
    target = folder / FOLDER
    shutil.rmtree(target, ignore_errors=True)
    for (label, seed), rows in table[~table["imputed"]].groupby(["arm", "seed"], sort=False):
        place = target / label / f"seed-{seed}"
        place.mkdir(parents=True)
        files.replace(place / EVENTS, _events(_scalars(folder, rows), writer, protos))
    return FOLDER


def _scalars(folder, rows):
    """(tag, epoch, value) of a run, in the order of the file."""
    first = rows.iloc[0]
    if isinstance(first["digest_exhibit"], str) and first["digest_exhibit"]:
        curve = shown.read_exhibit(folder, first["run_id"], first["digest_exhibit"])["curve"]
        for column, means in curve.items():
            for epoch, mean in enumerate(means, start=1):
                if mean is not None:
                    yield f"training/{column}", epoch, mean
    for metric in (*METRICS, *QUALITY):
        for mark, value in zip(rows["mark"], rows[metric], strict=True):
            yield f"evaluation/{metric}", int(mark), float(value)


def _events(scalars, writer, protos):
    buffer = io.BytesIO()
    records = writer(buffer)
    records.write(protos.Event(file_version="brain.Event:2").SerializeToString())
    for tag, epoch, value in scalars:
        event = protos.Event(step=epoch)
        event.summary.value.add(tag=tag, simple_value=value)
        records.write(event.SerializeToString())
    return buffer.getvalue()


def require():
    """TensorBoard's record writer and its event messages; raises ``UsageError`` where the extra is not installed."""
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise UsageError("E_USAGE", "--tensorboard", "the extra `tensorboard`", "nothing") from None
    return RecordWriter, event_pb2

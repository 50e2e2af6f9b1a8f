"""A calibration as figures and tables read it: which mark, which metric, which arms, in which order."""

from vqkit.analysis.results import arrays

MOST_ARMS = 24  # in a figure


class View:
    """A calibration as the figures read it.

    Attributes:
        value: the calibration.
        table, arrays: the results table and the same as arrays; None where only the calibration is at hand.
        mark, metric: what the decision rests on; the last mark and the first candidate where it was refused.
        arms: labels in order of their effect there, the most improving first, at most ``MOST_ARMS`` of the strongest.
        footer: contract, dataset, device and cells in one line.
    """

    def __init__(self, value, table=None):
        self.value, self.table, self.arrays = value, table, None
        if table is not None:
            treat = value["analysis"]["plan"]["intention_to_treat"]
            self.arrays = arrays(table, value["marks"], value["seeds"], treat)
        decision = value["decision"]
        self.mark = decision["budget_mark"] if decision["budget_mark"] is not None else value["marks"][-1]
        self.metric = decision["primary_metric"] or value["analysis"]["plan"]["metrics"][0]
        self.metrics = value["analysis"]["plan"]["metrics"]
        self.delta = value["analysis"]["plan"]["delta_min"]
        self.effects = {(one["arm"], one["mark"], one["metric"]): one for one in value["effects"]}
        everyone = sorted(
            (arm["label"] for arm in value["arms"] if arm["role"] == "arm"),
            key=lambda label: (-self.effects[label, self.mark, self.metric]["mean"], label),
        )
        half = MOST_ARMS // 2
        self.everyone = everyone
        self.arms = everyone if len(everyone) <= MOST_ARMS else everyone[:half] + everyone[-half:]
        self.reference = next(arm["label"] for arm in value["arms"] if arm["role"] == "reference")
        self.best = decision["known_better"][0] if decision["known_better"] else everyone[0]
        self.worst = decision["known_worse"][0] if decision["known_worse"] else everyone[-1]
        self.footer = provenance(value)

    def effect(self, arm, mark=None, metric=None):
        return self.effects[arm, self.mark if mark is None else mark, metric or self.metric]

    def row(self, arm, seed):
        """The row of the results table of an arm and a seed at the mark of the report."""
        table = self.table
        return table[(table["arm"] == arm) & (table["seed"] == seed) & (table["mark"] == self.mark)].iloc[0]


def provenance(value):
    """Contract, dataset, device and cells in one line: what every result must be read with."""
    cells, device = value["cells"], value["device"]
    threads = f"cpu, {device['threads']} thread{'s' * (device['threads'] > 1)}" if device["device"] == "cpu" else "cuda"
    return (
        f"contract {value['contract']['name']} · dataset {value['dataset']['id']} · {threads} · cells: "
        f"{cells['complete']} complete, {cells['failed']} failed, {cells['missing']} missing of {cells['planned']}"
    )

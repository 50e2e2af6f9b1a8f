"""The documentation of knobs is complete: one row for each, marked as candidate where it is one."""

import re

from conftest import REPOSITORY

from vqkit.formats.knobs import KNOBS


def test_every_knob_has_its_row():
    text = (REPOSITORY / "docs/KNOBS.md").read_text()
    rows = {name: bool(star) for name, star in re.findall(r"^\| `(\w+)`( \*)?", text, re.MULTILINE)}
    assert rows == {name: knob.candidate for name, knob in KNOBS.items()}
    for knob in KNOBS.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{knob.name}`"))
        assert all(f"`{choice}`" in row for choice in knob.choices), knob.name

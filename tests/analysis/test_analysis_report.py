"""The report: one file that needs nothing, says where every number comes from, and is the same every time."""

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import simulate
from conftest import contract_spec
from PIL import Image
from simulate import arm

from vqkit.analysis import draw, page, tables
from vqkit.analysis.__main__ import main
from vqkit.errors import Refused

FIGURES = (
    "heatmap", "slopes", "trajectories", "guardrails", "sensitivity", "usage", "strips", "curves", "surface", "power",
)  # fmt: skip
PROVENANCE = "contract quick-v1 · dataset synthetic · cpu, 1 thread · cells: 38 complete, 1 failed, 1 missing of 40"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "campaign"
    arms = [
        arm("better", {2: 0.05, 5: 0.1, 10: 0.2}, knobs={"projection_lr_multiplier": 10.0}),
        arm("worse", -0.1, knobs={"projection_lr_multiplier": 0.1}),
        arm("costly", 0.2, quality=-3.0, knobs={"latent_normalization": "l2"}),
        arm("turning", {2: 0.06, 5: 0.0, 10: -0.08}, knobs={"commitment_weight": 1.0}),
    ]
    lost = {("costly", 2): "nonfinite", ("costly", 3): "missing"}
    simulate.write_campaign(folder, arms, seeds=8, states=lost, exhibits=True)
    main(["calibrate", str(folder)])
    main(["report", str(folder)])
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.html").read_text()


def section(text, anchor):
    return text[text.index(f'<section id="{anchor}"') :].split("</section>")[0]


def test_page_needs_no_network_and_no_script(text):
    assert "<script" not in text
    assert not re.search(r'\b(src|href)="(?!#|data:image/png;base64,)', text)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    assert not re.search(r"\bon[a-z]+=", text)
    outside = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_strips_show_the_exhibits_of_one_seed(folder):
    """Read back from the SVG: originals, then reference, best and worst, of the first common seed."""
    svg = (folder / "figures" / "strips.svg").read_text()
    assert svg.count("image-rendering:pixelated") == 4
    shown = [
        np.array(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGBA"))
        for text in re.findall(r'href="data:image/png;base64,([^"]+)"', svg)
    ]
    runs = pd.read_csv(folder / "results.csv").query("seed == 101 and mark == 2").set_index("arm")["run_id"]
    wanted = [simulate.pictures()]
    for arm_label in ("reference", "turning", "worse"):
        exhibit = json.loads((folder / "exhibits" / f"{runs[arm_label]}.json").read_bytes())
        raw = base64.b64decode(exhibit["samples"][0]["reconstruction"])
        wanted.append(np.frombuffer(raw, np.uint8).reshape(8, 32, 32, 3))
    for found, images in zip(shown, wanted, strict=True):
        for i, image in enumerate(images):
            one = found[:, 34 * i : 34 * i + 32, :3]
            assert (one == image).all() or (one[::-1] == image).all()  # matplotlib may turn it and its axis
    words = " ".join(re.findall(r">([^<]+)</text>", svg))
    for text in ("original", "reference: ", "turning (best): ", "worse (worst): ", "dB, "):
        assert text in words


def test_strips_have_an_alternative_text(text):
    label = re.search(r'aria-label="([^"]+)"', section(text, "strips"))[1]
    assert label == (
        "8 evaluation images in a row, below them reconstructions by reference, turning (best), worse (worst), "
        "seed 101."
    )


def test_the_environment_is_named(text):
    found = section(text, "digests")
    for words in ("cpu imagined, AVX2", "2.14.1+cpu", "CPython 3.11.9", "Linux x86_64"):
        assert words in found


def test_a_campaign_without_exhibits_says_so(tmp_path):
    """As where no seed has all three arms: nothing is drawn, nothing breaks."""
    folder = simulate.write_campaign(tmp_path / "c", [arm("a", 0.2), arm("b", -0.2)], seeds=6)
    main(["calibrate", str(folder)])
    main(["report", str(folder)])
    assert "no seed on which all of these arms completed" in section((folder / "report.html").read_text(), "strips")


@pytest.mark.parametrize("place", ["setting.json", "exhibits"])
def test_what_is_shown_must_be_what_was_frozen(folder, tmp_path, place):
    copy = shutil.copytree(folder, tmp_path / "copy")
    paths = sorted((copy / place).iterdir()) if place == "exhibits" else [copy / place]
    for path in paths:
        path.chmod(0o644)
        path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    with pytest.raises(Refused) as caught:
        main(["report", str(copy)])
    assert set(caught.value.codes) == {"E_ANALYSIS_BINDING"}


def test_page_is_well_formed(text):
    stack, void = [], {"meta", "link", "br", "hr", "img", "input"}

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in void:
                stack.append(tag)

        def handle_endtag(self, tag):
            assert stack.pop() == tag

    Reader().feed(text)
    assert stack == []
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for wanted in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert wanted in ids


def test_every_result_names_contract_dataset_device_and_cells(text):
    assert PROVENANCE in section(text, "decision")
    for anchor in ("arms", "why", "power", "reversals", "stance", "cells", "all", *FIGURES):
        assert PROVENANCE in section(text, anchor), anchor


def test_page_says_what_was_decided_and_what_was_lost(text):
    decision = section(text, "decision")
    for words in ("Calibrated", "2 epochs", "Known better:</b> ", "turning point the other way", "CPU hours"):
        assert words in decision
    cells = section(text, "cells")
    assert "40 planned = 38 complete + 1 failed + 1 missing" in cells
    assert "nonfinite" in cells
    assert "missing" in cells
    assert "none</td><td>unverified" in section(text, "stance")
    assert "no arm moves both knobs: projection_lr_multiplier × commitment_weight" in section(text, "surface")


def test_same_campaign_gives_the_same_bytes(folder, tmp_path):
    again = shutil.copytree(folder, tmp_path / "again")
    for name in ("report.html", "report.md"):
        (again / name).unlink()
    shutil.rmtree(again / "figures")
    main(["report", str(again)])
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    for name in names:
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_lies_beside_the_report(folder, name):
    svg = (folder / "figures" / f"{name}.svg").read_text()
    root = ElementTree.fromstring(svg)
    words = " ".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert PROVENANCE in words
    assert "var(" not in svg
    assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f"figures/{name}.png" in (folder / "report.md").read_text()


def test_figures_follow_the_theme_of_the_page(text):
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert drawn.count("<svg") == len(FIGURES)
    for name in ("ink", "better", "worse"):
        assert f"var(--{name})" in drawn
    for colour in set(re.findall(r"#[0-9a-fA-F]{6}\b", drawn)):
        raise AssertionError(f"{colour} does not follow the theme")
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [draw.LIGHT, page.DARK])
@pytest.mark.parametrize("name", ["ink", "muted", "better", "worse"])
def test_text_has_the_contrast_that_wcag_asks_for(palette, name):
    bright, dark = sorted((luminance(palette[name]), luminance(palette["ground"])), reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_terminal_ends_with_arms_decision_and_files(folder, capsys):
    main(["report", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("arm "))
    for word in ("effect", "p, joint", "verdict", "guardrails"):
        assert word in head
    costly = next(line for line in lines if line.startswith("costly "))
    assert "inconclusive" in costly
    assert any(line.startswith("Calibrated (38 of 40 cells complete") for line in lines)
    assert lines[-1] == str(folder / "figures")
    assert str(folder / "report.html") in lines


def test_markdown_holds_decision_arms_and_digests(folder):
    text = (folder / "report.md").read_text()
    assert PROVENANCE in text
    assert "| better |" in text
    assert "| calibration | sha256:" in text


def test_names_from_files_are_escaped():
    table = page.table(["<b>"], [['"><script>alert(1)</script>', "<i>"]], caption="<u>")
    assert "<script" not in table
    for tag in ("<b>", "<i>", "<u>"):
        assert tag not in table
    assert tables.pipes(["a|b"], [["c|d"]])[0] == "| a\\|b |"


def test_many_arms_are_drawn_in_part_and_listed_in_full(tmp_path, capsys):
    arms = [arm(f"arm-{i:02d}", 0.01 * (i - 15)) for i in range(30)]
    folder = simulate.write_campaign(tmp_path / "c", arms, seeds=6)
    main(["calibrate", str(folder)])
    main(["report", str(folder)])
    assert "(24 of 30 arms, the strongest each way)" in capsys.readouterr().out
    text = (folder / "report.html").read_text()
    assert "24 of 30 arms" in section(text, "heatmap")
    assert section(text, "arms").count("<tr>") == 31


def test_a_refusal_is_reported_with_what_to_change(tmp_path, capsys):
    """Two arms of one direction, one trained mark: the page says so instead of leaving its sections empty."""
    spec = contract_spec()
    spec["marks"] = [0, 5]
    arms = [arm("a", 0.2, knobs={"commitment_weight": 1.0}), arm("b", 0.1, knobs={"commitment_weight": 0.1})]
    folder = simulate.write_campaign(tmp_path / "c", arms, spec=spec, seeds=6)
    main(["calibrate", str(folder)])
    main(["report", str(folder)])
    printed = capsys.readouterr().out
    assert "  normalized_perplexity and utilization: no arm is detected as worse on every seed at epoch 5\n" in printed
    assert "  to change: add arms with stronger levels in the direction that is missing (worse)\n" in printed
    text = (folder / "report.html").read_text()
    assert "Refused" in section(text, "decision")
    assert "What to change" in section(text, "decision")
    assert "one trained mark only" in section(text, "reversals")
    assert "2 terms over 2 cells" in section(text, "surface")

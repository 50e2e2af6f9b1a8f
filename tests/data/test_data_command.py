"""The command ``data prepare | list | show``: what it prints, its exit codes, its progress."""

import io
import json

import pytest
from datafiles import noise, write_classes, write_pair

from runner import data
from vqkit.errors import guarded


def run(capsys, *argv):
    """Exit code, stdout, stderr of the command."""
    code = guarded(data.main, [str(argument) for argument in argv])
    return code, *capsys.readouterr()


def test_prepare_prints_id_counts_digest_and_folder(tmp_path, capsys):
    write_pair(tmp_path / "pair")
    root = tmp_path / "data"
    code, out, err = run(capsys, "prepare", tmp_path / "pair", "--name", "mine", "--root", root)
    assert code == 0
    assert out.splitlines()[:2] == ["dataset  mine", "images   12 training, 5 evaluation"]
    assert "decode train: 12 of 12" in err
    code, out, _ = run(capsys, "prepare", tmp_path / "pair", "--name", "mine", "--root", root, "--json")
    found = json.loads(out)
    assert (code, found["id"], found["train"], found["folder"]) == (0, "mine", 12, str(root / "mine"))
    code, listed, _ = run(capsys, "list", "--root", root, "--json")
    assert [card["digest"] for card in json.loads(listed)] == [found["digest"]]
    code, shown, _ = run(capsys, "show", "mine", "--root", root, "--json")
    assert json.loads(shown) == found
    code, listed, _ = run(capsys, "list", "--root", root)
    assert found["digest"] in listed


def test_notice_of_the_fallback_is_on_stderr(tmp_path, capsys, monkeypatch):
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:1/x")
    code, out, err = run(capsys, "prepare", "auto", "--root", tmp_path / "data", "--json")
    assert code == 0
    assert json.loads(out)["id"] == "patches"
    assert "NOTICE: this is not CIFAR-10" in err


@pytest.mark.parametrize(
    ("argv", "code", "named"),
    [
        (["prepare"], 2, "E_USAGE"),
        (["prepare", "x", "--holdout", "many"], 2, "E_USAGE"),
        (["prepare", "absent"], 3, "E_DATA_SOURCE"),
        (["prepare", "one"], 3, "E_DATA_SOURCE"),
        (["prepare", "one", "--holdout", "-1"], 2, "E_USAGE"),
        (["prepare", "one", "--holdout", "1", "--name", "A b"], 2, "E_USAGE"),
        (["prepare", "one", "--holdout", "1", "--name", "cifar10"], 4, "E_DATASET_NAME"),
        (["show", "absent"], 3, "E_DATA_SOURCE"),
    ],
)
def test_exit_codes(tmp_path, capsys, monkeypatch, argv, code, named):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "one" / "train", *noise(3))
    found, out, err = run(capsys, *argv)
    assert (found, out) == (code, "")
    assert named in err
    found, _, err = run(capsys, *argv, "--json")
    assert (found, json.loads(err)["errors"][0]["code"]) == (code, named)


def test_list_of_nothing(tmp_path, capsys):
    assert run(capsys, "list", "--root", tmp_path / "absent")[:2] == (0, f"nothing is prepared in {tmp_path}/absent\n")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere():
    for stream in (Terminal(), io.StringIO()):
        progress = data.Progress(stream)
        for done in (100, 200):
            progress("decode train", done, 200)
        progress("download", 5, None)
        progress.close()
        text = stream.getvalue()
        assert ("\r" in text) == stream.isatty()
        assert "decode train" in text
        assert "200" in text

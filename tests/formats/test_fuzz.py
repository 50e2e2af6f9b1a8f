"""A little of the fuzzing at every test run, and the proof that it would notice."""

import fuzz
import pytest

from vqkit.formats import canonical


def test_two_thousand_inputs_and_no_crash():
    accepted, crashes = fuzz.fuzz(2000, seed=1)
    assert crashes == []
    assert 20 < accepted < 1500


@pytest.mark.parametrize("flaw", [ValueError, RecursionError, KeyError])
def test_another_exception_would_be_noticed(monkeypatch, flaw):
    def flawed(data, **_):
        raise flaw

    monkeypatch.setattr(canonical, "loads", flawed)
    assert len(fuzz.fuzz(10, seed=1)[1]) == 10


def test_a_repaired_value_would_be_noticed(monkeypatch):
    original = canonical.loads
    monkeypatch.setattr(canonical, "loads", lambda data, **options: original(data, **options) or {"repaired": True})
    with pytest.raises(AssertionError, match="another value"):
        fuzz.try_one(b"{}", None)

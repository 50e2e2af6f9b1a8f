"""The strict reader and the canonical writer, against Python's own json, hand-written RFC 8785 bytes and a property."""

import json
import math
import random
import tracemalloc

import fuzz
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit.errors import Rejected
from vqkit.formats import canonical

BAD = [
    (b'{"a": 1, "a": 2}', "E_JSON_DUPLICATE_KEY", "json.a"),
    (b'{"x": {"a": [{"b": 1, "b": 1}]}}', "E_JSON_DUPLICATE_KEY", "json.x.a[0].b"),
    (b"{} {}", "E_JSON_SYNTAX", "json"),
    (b"[1,]", "E_JSON_SYNTAX", "json"),
    (b"", "E_JSON_SYNTAX", "json"),
    (b'{"a": 01}', "E_JSON_SYNTAX", "json"),
    (b"\xef\xbb\xbf{}", "E_JSON_ENCODING", "json"),
    ('{"a": 1}'.encode("utf-16"), "E_JSON_ENCODING", "json"),
    (b'{"a": "\xff"}', "E_JSON_ENCODING", "json"),
    (b'{"a": NaN}', "E_JSON_NUMBER", "json.a"),
    (b"[Infinity]", "E_JSON_NUMBER", "json[0]"),
    (b"[-Infinity]", "E_JSON_NUMBER", "json[0]"),
    (b"[1e999]", "E_JSON_NUMBER", "json[0]"),
    (b"[1e-999]", "E_JSON_NUMBER", "json[0]"),
    (b"[-0.0]", "E_JSON_NUMBER", "json[0]"),
    (b"[-0]", "E_JSON_NUMBER", "json[0]"),
    (b"[-0e5]", "E_JSON_NUMBER", "json[0]"),
    (b"[9007199254740992]", "E_JSON_NUMBER", "json[0]"),
    (b"[1e16]", "E_JSON_NUMBER", "json[0]"),
    (b"[" + b"9" * 5000 + b"]", "E_JSON_NUMBER", "json[0]"),
    (b'["\\ud800"]', "E_JSON_STRING", "json[0]"),
    ('{"é": 1}'.encode(), "E_JSON_KEY", "json.'\\xe9'"),
    (b"[" * 40 + b"]" * 40, "E_JSON_NESTING", "json" + "[0]" * 33),
    (b"[" * 200000, "E_JSON_NESTING", "json"),
]


@pytest.mark.parametrize(("data", "code", "where"), BAD, ids=range(len(BAD)))
def test_rejects_with_code_and_path(data, code, where):
    with pytest.raises(Rejected) as caught:
        canonical.loads(data)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [(code, where)]


def test_reports_every_fault_at_once():
    with pytest.raises(Rejected) as caught:
        canonical.loads(b'{"a": NaN, "b": {"c": 1, "c": -0.0}, "d": "\\udc00", "e": [1e999]}')
    expected = ("E_JSON_NUMBER", "E_JSON_DUPLICATE_KEY", "E_JSON_NUMBER", "E_JSON_STRING", "E_JSON_NUMBER")
    assert caught.value.codes == expected


def test_a_long_string_takes_no_more_memory_than_a_few_copies():
    """A regular expression that remembers every step of its way takes a hundred bytes for each."""
    data = b'"' + b"A" * (4 << 20) + b'"'
    tracemalloc.start()
    try:
        assert len(canonical.loads_canonical(data, max_bytes=8 << 20)) == 4 << 20
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_size_is_bounded_before_parsing():
    with pytest.raises(Rejected) as caught:
        canonical.loads(b"[1]", max_bytes=2)
    assert caught.value.codes == ("E_JSON_SIZE",)


def test_integers_and_floats_keep_their_type():
    value = canonical.loads(b'{"i": 1, "f": 1.0, "e": 1e2, "big": 9007199254740991, "t": true}')
    assert {key: type(item) for key, item in value.items()} == {"i": int, "f": float, "e": float, "big": int, "t": bool}


def test_canonical_bytes_of_the_rfc_example():
    # RFC 8785, section 3.2.2 and appendix B: numbers by ECMAScript, keys sorted, shortest escapes
    value = {
        "numbers": [333333333.33333329, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
    }
    expected = '{"numbers":[333333333.3333333,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    assert canonical.dumps(value).decode() == expected


def test_other_spelling_is_not_canonical():
    assert canonical.loads_canonical(b'{"a":1}') == {"a": 1}
    with pytest.raises(Rejected) as caught:
        canonical.loads_canonical(b'{"a": 1}')
    assert caught.value.codes == ("E_JSON_CANONICAL",)


@pytest.mark.parametrize("value", [math.nan, -0.0, 2**53, 1e16, "\ud800", {1: 2}, {"é": 1}, b"x", {"a": object()}])
def test_writer_refuses_what_the_reader_would(value):
    with pytest.raises(Rejected):
        canonical.dumps(value)


SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_accepts_exactly_what_reads_back_equal(value):
    text = json.dumps(value).encode()
    try:
        read = canonical.loads(text)
    except Rejected:
        with pytest.raises(Rejected):
            canonical.dumps(value)
        return
    assert read == value
    assert canonical.loads(canonical.dumps(read)) == read
    assert json.loads(canonical.dumps(read)) == value


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\u', max_size=40).map(str.encode))
def test_raises_nothing_but_its_own_errors(data):
    try:
        value = canonical.loads(data)
    except Rejected:
        return
    assert canonical.loads(canonical.dumps(value)) == value


def test_the_short_way_agrees_with_the_long_one():
    """Mutated vectors and noise: what the short way takes, the long way takes as an equal value of equal types."""
    rng = random.Random(7)
    sources = [path.read_bytes() for path in sorted((fuzz.VECTORS / "valid").glob("*.json"))]
    sources = [data for data in sources if len(data) < 20_000]
    taken = 0
    for number in range(6000):
        data = sources[number % len(sources)]
        data = fuzz.mutate(data, data, rng) if number >= len(sources) else data
        data = data if number % 3 else fuzz.noise(rng)
        short = canonical._plain(data)
        if short is None:
            continue
        taken += 1
        long = canonical.loads(data)
        assert canonical.rfc8785.dumps(long) == data
        assert repr(short) == repr(long)
    assert taken > 100


@pytest.mark.parametrize(
    "text",
    ["9007199254740993", "-9007199254740993", "[9007199254740993.5]", "[" * 34 + "]" * 34, '{"\u00e9":1}', "NaN", "-0",
     "1.0", "1e5", "1E5", '{"a":1,"a":1}', '{"b":1,"a":2}', "[1, 2]", '"\\ud800"', "0.00001", "-Infinity", '"\\u0041"'],
)  # fmt: skip
def test_the_short_way_takes_nothing_that_needs_a_closer_look(text):
    assert canonical._plain(text.encode()) is None


def test_the_short_way_takes_what_scores_are_made_of():
    value = {"a": [0, 1.5, -3, 0.1234567890123456], "b": {"c": None, "d": True, "e": "é [{ 1e5 \n"}}
    assert canonical._plain(canonical.dumps(value)) == value

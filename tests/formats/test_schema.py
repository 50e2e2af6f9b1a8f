"""Schemas: closed, all violations at once, exact types, and patterns that end where they say."""

import json

import pytest
from conftest import REPOSITORY

from vqkit.formats import campaign, schema
from vqkit.formats.schema import NAME, POSITIVE, closed

THING = closed(
    optional=("note",), name=NAME, count=POSITIVE, note={"type": "string"}, many={"type": "array", "uniqueItems": True}
)
GOOD = {"name": "a-1", "count": 2, "many": [1, 2]}


def codes(value):
    return [(problem.code, problem.where) for problem in schema.problems(value, THING, "thing")]


def test_a_good_value_has_no_problems():
    assert codes(GOOD) == []
    assert codes(GOOD | {"note": "x"}) == []


def test_all_problems_at_once_with_their_places():
    assert codes({"nam": "A", "count": 1.0, "many": [1, 1]}) == [
        ("E_SCHEMA_MISSING_KEY", "thing.name"),
        ("E_SCHEMA_UNKNOWN_KEY", "thing.nam"),
        ("E_SCHEMA_TYPE", "thing.count"),
        ("E_SCHEMA_VALUE", "thing.many"),
    ]


def test_types_are_exact():
    for count in (1.0, True, "1", None):
        assert codes(GOOD | {"count": count}) == [("E_SCHEMA_TYPE", "thing.count")], count


def test_a_pattern_ends_at_the_end():
    for name in ("a\n", "A", "", "a" * 65, "a/b", "..", "-a"):
        assert codes(GOOD | {"name": name}) == [("E_SCHEMA_VALUE", "thing.name")], name


def test_the_nearest_key_is_named():
    (problem, _) = schema.problems({**GOOD, "nmae": 1, "name": 3}, THING, "thing")
    assert "did you mean 'name'" in problem.found


SOUP = [None, True, 0, 1, -1, 1.0, 2.5, "", "a-1", "a\n", "x" * 70, [], [1, 2], [1, 1], [1, True], ["a", "a"], [-1], {},
        {"count": 2}, GOOD, GOOD | {"note": 1}, GOOD | {"extra": 1}, [GOOD], {"a": 1}, {"b": "x"}, {"name": "a-1"},
        "sha256:" + "0" * 64]  # fmt: skip
SCHEMAS = [
    THING, POSITIVE, NAME, schema.COUNT, schema.DIGEST, {"type": ["integer", "null"]}, {"const": "a-1"},
    {"enum": ["a-1", None]}, {"type": "array", "items": schema.COUNT}, {"type": "array", "items": THING, "minItems": 1},
    {"type": "array", "maxItems": 1}, {"anyOf": [NAME, POSITIVE]}, closed(name=NAME), closed(count=POSITIVE),
    {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": {"type": "number", "maximum": 5}},
    {"type": "object", "properties": {"a": POSITIVE}}, {"type": "object", "additionalProperties": False},
    {"oneOf": [NAME, POSITIVE]}, {"type": "object", "required": ["name"]}, {"exclusiveMinimum": 0},
    {"type": "number", "exclusiveMaximum": 1}, {"title": "a thing", **closed(name=NAME)},
]  # fmt: skip


@pytest.mark.parametrize("rule", SCHEMAS, ids=str)
def test_the_short_way_accepts_nothing_that_jsonschema_refuses(rule):
    """Every value of a soup against every schema; and the short way is not one that always says no."""
    short = [schema._accepts(value, rule) for value in SOUP]
    full = [schema._validator()(rule).is_valid(value) for value in SOUP]
    assert [a for a, b in zip(short, full, strict=True) if a and not b] == []
    assert any(short) or "oneOf" in rule


def test_every_score_goes_the_short_way():
    path = REPOSITORY / "tests" / "vectors" / "valid" / "score.json"
    assert schema._accepts(json.loads(path.read_bytes()), campaign.SCORE_SCHEMA)

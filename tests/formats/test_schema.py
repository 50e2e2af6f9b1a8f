"""Schemas: closed, all violations at once, exact types, and patterns that end where they say."""

from vqkit.formats import schema
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

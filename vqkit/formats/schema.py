"""Closed JSON Schemas (draft 2020-12), all violations at once, in vqkit's own error codes.

Stricter than the standard in one place: ``1.0`` is not an integer. Schemas are plain dicts that live beside the
format that they describe; ``closed`` builds an object schema in which every key is required and no other exists. A
hostile value costs no more than time in proportion to its size.
"""

import difflib
import itertools
import json
import re

import jsonschema
from jsonschema.validators import extend

from vqkit.errors import Problem

_CODES = {"additionalProperties": "E_SCHEMA_UNKNOWN_KEY", "required": "E_SCHEMA_MISSING_KEY", "type": "E_SCHEMA_TYPE"}
_TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)


def _unique(_, wanted, instance, __):
    """``uniqueItems`` in linear time; jsonschema's own compares every pair where items can't be sorted."""
    if wanted and isinstance(instance, list):
        spelled = [json.dumps(item, sort_keys=True) for item in instance]
        if len(set(spelled)) < len(spelled):
            yield jsonschema.ValidationError("an item stands twice")


def _matches(pattern, text):
    """Whether a pattern matches as ECMAScript has it: ``$`` is the end, not the place before a last newline."""
    return re.search(pattern, text) is not None and not text.endswith("\n")


def _pattern(_, pattern, instance, __):
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield jsonschema.ValidationError("another form")


_KEYWORDS_OF_OURS = {"uniqueItems": _unique, "pattern": _pattern}
_Validator = extend(jsonschema.Draft202012Validator, _KEYWORDS_OF_OURS, type_checker=_TYPES)
_MOST = 200  # problems of one value that are reported

DIGEST = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
HEX64 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}
COUNT = {"type": "integer", "minimum": 0}
POSITIVE = {"type": "integer", "minimum": 1}
TEXT = {"type": "string", "maxLength": 20000}


def closed(optional=(), **properties):
    """An object schema that requires every key of ``properties`` (but those in ``optional``) and allows no other."""
    required = [key for key in properties if key not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def problems(value, schema, where):
    """Every violation of ``schema`` by ``value`` (200 at most), in document order, as ``Problem`` records."""
    if _accepts(value, schema):
        return []
    found = itertools.islice(_Validator(schema).iter_errors(value), _MOST)
    errors = sorted(found, key=lambda error: list(map(str, error.absolute_path)))
    return list(itertools.islice((problem for error in errors for problem in _translate(error, where)), _MOST))


def _accepts(value, schema):
    """Whether ``value`` surely conforms, in a fraction of jsonschema's time; False where only jsonschema can tell.

    Knows the keywords that hold scores and campaigns together; any other keyword, or any doubt, gives False.
    """
    for keyword, rule in schema.items():
        check = _KEYWORDS.get(keyword)
        if check is None or not check(value, rule, schema):
            return False
    return True


def _accepts_type(value, rule, _):
    if type(rule) is str:
        return type(value) in _KINDS[rule]
    return any(type(value) in _KINDS[kind] for kind in rule)


def _accepts_items(value, rule, _):
    if type(value) is list and rule == COUNT:
        return all(type(child) is int and child >= 0 for child in value)
    return type(value) is not list or all(_accepts(child, rule) for child in value)


def _surely_unique(values):
    """Whether no two are equal; False also where their types could make 1, 1.0 and true a question."""
    kinds = {type(value) for value in values}
    return kinds in (set(), {str}, {int}) and len(set(values)) == len(values)


def _accepts_properties(value, rule, schema):
    if type(value) is dict:
        for key, child in value.items():
            if key in rule and not _accepts(child, rule[key]):
                return False
    return True


def _accepts_rest(value, rule, schema):
    if type(value) is not dict:
        return True
    known = schema.get("properties", {})
    rest = [key for key in value if key not in known]
    return not rest if rule is False else all(_accepts(value[key], rule) for key in rest)


_KINDS = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
_KEYWORDS = {
    "type": _accepts_type,
    "const": lambda value, rule, _: type(value) is str and value == rule,
    "enum": lambda value, rule, _: type(value) in (str, type(None)) and value in rule,
    "pattern": lambda value, rule, _: type(value) is not str or _matches(rule, value),
    "maxLength": lambda value, rule, _: type(value) is not str or len(value) <= rule,
    "minimum": lambda value, rule, _: type(value) not in (int, float) or value >= rule,
    "maximum": lambda value, rule, _: type(value) not in (int, float) or value <= rule,
    "minItems": lambda value, rule, _: type(value) is not list or len(value) >= rule,
    "maxItems": lambda value, rule, _: type(value) is not list or len(value) <= rule,
    "uniqueItems": lambda value, rule, _: type(value) is not list or _surely_unique(value),
    "required": lambda value, rule, _: type(value) is not dict or all(key in value for key in rule),
    "propertyNames": lambda value, rule, _: type(value) is not dict or all(_accepts(key, rule) for key in value),
    "properties": _accepts_properties,
    "additionalProperties": _accepts_rest,
    "items": _accepts_items,
    "anyOf": lambda value, rule, _: any(_accepts(value, choice) for choice in rule),
}


def _translate(error, where):
    path = where + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    code = _CODES.get(error.validator, "E_SCHEMA_VALUE")
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        for key in error.instance:
            if key not in known:
                yield Problem(
                    code=code, where=f"{path}.{key}", expected=f"one of {', '.join(known)}", found=nearest(key, known)
                )
    elif error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        for key in missing:
            if error.message.startswith(repr(key)):
                yield Problem(code=code, where=f"{path}.{key}", expected="the key", found="nothing")
    elif error.validator == "type":
        yield Problem(code=code, where=path, expected=_words(error.validator_value), found=_shown(error.instance))
    else:
        expected = f"{error.validator} {_words(error.validator_value)}"
        yield Problem(code=code, where=path, expected=expected, found=_shown(error.instance))


def nearest(name, known):
    """``name`` in words, with the known name that it probably means."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name)


def _words(value):
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)[:200]


def _shown(value):
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

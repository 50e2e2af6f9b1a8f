"""Closed JSON Schemas (draft 2020-12), all violations at once, in vqkit's own error codes.

Stricter than the standard in one place: ``1.0`` is not an integer. Schemas are plain dicts that live beside the
format that they describe; ``closed`` builds an object schema in which every key is required and no other exists. A
hostile value costs no more than time in proportion to its size.
"""

import difflib
import itertools
import json

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


_Validator = extend(jsonschema.Draft202012Validator, {"uniqueItems": _unique}, type_checker=_TYPES)
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
    found = itertools.islice(_Validator(schema).iter_errors(value), _MOST)
    errors = sorted(found, key=lambda error: list(map(str, error.absolute_path)))
    return list(itertools.islice((problem for error in errors for problem in _translate(error, where)), _MOST))


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

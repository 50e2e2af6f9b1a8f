"""Closed JSON Schemas (draft 2020-12), all violations at once, in vqkit's own error codes.

Stricter than the standard in one place: ``1.0`` is not an integer. Schemas are plain dicts that live beside the
format that they describe; ``closed`` builds an object schema in which every key is required and no other exists.
"""

import difflib

import jsonschema
from jsonschema.validators import extend

from vqkit.errors import Problem

_CODES = {"additionalProperties": "E_SCHEMA_UNKNOWN_KEY", "required": "E_SCHEMA_MISSING_KEY", "type": "E_SCHEMA_TYPE"}
_TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
DIGEST = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
HEX64 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}
COUNT = {"type": "integer", "minimum": 0}
POSITIVE = {"type": "integer", "minimum": 1}
TEXT = {"type": "string", "maxLength": 20000}


def _items(validator, items, instance, parent):
    """``items`` of the standard, with one comparison for each element of a long list of counts."""
    counts = items == COUNT and type(instance) is list and all(type(value) is int and value >= 0 for value in instance)
    if not counts:
        yield from jsonschema.Draft202012Validator.VALIDATORS["items"](validator, items, instance, parent)


_Validator = extend(jsonschema.Draft202012Validator, validators={"items": _items}, type_checker=_TYPES)


def closed(optional=(), **properties):
    """An object schema that requires every key of ``properties`` (but those in ``optional``) and allows no other."""
    required = [key for key in properties if key not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def problems(value, schema, where):
    """Every violation of ``schema`` by ``value``, in document order, as ``Problem`` records."""
    errors = sorted(_Validator(schema).iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
    return [problem for error in errors for problem in _translate(error, where)]


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

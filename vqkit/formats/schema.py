"""Closed JSON Schemas (draft 2020-12), all violations at once, in vqkit's own error codes.

Stricter than the standard in one place: ``1.0`` is not an integer. Schemas are plain dicts that live beside the
format that they describe; ``closed`` builds an object schema in which every key is required and no other exists. A
hostile value costs no more than time in proportion to its size.
"""

import difflib
import functools
import itertools
import json
import re

from vqkit.errors import Problem

_CODES = {"additionalProperties": "E_SCHEMA_UNKNOWN_KEY", "required": "E_SCHEMA_MISSING_KEY", "type": "E_SCHEMA_TYPE"}
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
    found = itertools.islice(_validator()(schema).iter_errors(value), _MOST)
    errors = sorted(found, key=lambda error: list(map(str, error.absolute_path)))
    return list(itertools.islice((problem for error in errors for problem in _translate(error, where)), _MOST))


@functools.cache
def _validator():
    """jsonschema's validator with our keywords; it is loaded when something does not surely conform."""
    import jsonschema
    from jsonschema.validators import extend

    def unique(_, wanted, instance, __):
        """In linear time; jsonschema's own compares every pair where items can't be sorted."""
        if wanted and isinstance(instance, list):
            spelled = [json.dumps(item, sort_keys=True) for item in instance]
            if len(set(spelled)) < len(spelled):
                yield jsonschema.ValidationError("an item stands twice")

    def pattern(_, wanted, instance, __):
        """As ECMAScript has it: ``$`` is the end, not the place before a last newline."""
        if isinstance(instance, str) and (re.search(wanted, instance) is None or instance.endswith("\n")):
            yield jsonschema.ValidationError("another form")

    types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return extend(jsonschema.Draft202012Validator, {"uniqueItems": unique, "pattern": pattern}, type_checker=types)


def _accepts(value, schema):
    """Whether ``value`` surely conforms, in a fraction of jsonschema's time; False where only jsonschema can tell.

    A schema is turned into functions once; the schemas of the formats are few and never change.
    """
    if id(schema) not in _COMPILED:
        if len(_COMPILED) >= _MOST_COMPILED:
            _COMPILED.clear()
        _COMPILED[id(schema)] = schema, _compile(schema)  # kept with it, so that no other can get its id
    return _COMPILED[id(schema)][1](value)


def _compile(schema):
    """A function that says whether a value surely conforms.

    Knows the keywords of the formats; any other keyword, or any doubt, gives False.
    """
    if not schema.keys() <= _KEYWORDS.keys():
        return lambda value: False
    if _is_closed(schema):
        return _closed(schema["properties"])
    checks = [_KEYWORDS[keyword](rule, schema) for keyword, rule in schema.items()]
    if len(checks) == 2:  # most of them: a type and one rule
        first, second = checks
        return lambda value: first(value) and second(value)
    return checks[0] if len(checks) == 1 else lambda value: all(check(value) for check in checks)


def _is_closed(schema):
    """Whether this is an object schema as ``closed`` makes them, without optional keys."""
    parts = schema.keys() == {"type", "properties", "required", "additionalProperties"}
    return parts and schema["additionalProperties"] is False and {*schema["required"]} == schema["properties"].keys()


def _closed(properties):
    checks = [(name, _compile(rule)) for name, rule in properties.items()]
    names = properties.keys()

    def accepts(value):
        return type(value) is dict and value.keys() == names and all(check(value[name]) for name, check in checks)

    return accepts


def _type(rule, _):
    kinds = {kind for name in ([rule] if type(rule) is str else rule) for kind in _KINDS[name]}
    return lambda value: type(value) in kinds


def _enum(rule, _):
    known = frozenset(one for one in rule if type(one) in (str, type(None)))
    return lambda value: type(value) in (str, type(None)) and value in known


def _items(rule, _):
    if rule == COUNT:
        return lambda value: (
            type(value) is not list or ({*map(type, value)} <= {int} and (not value or min(value) >= 0))
        )
    check = _compile(rule)
    return lambda value: type(value) is not list or all(map(check, value))


def _surely_unique(values):
    """Whether no two are equal; False also where their types could make 1, 1.0 and true a question."""
    kinds = {type(value) for value in values}
    return kinds in (set(), {str}, {int}) and len(set(values)) == len(values)


def _properties(rule, _):
    checks = {name: _compile(one) for name, one in rule.items()}
    return lambda value: (
        type(value) is not dict or all(checks[key](child) for key, child in value.items() if key in checks)
    )


def _rest(rule, schema):
    known = schema.get("properties", {})
    check = _compile(rule) if type(rule) is dict else lambda value: False
    return lambda value: (
        type(value) is not dict or all(check(child) for key, child in value.items() if key not in known)
    )


def _property_names(rule, _):
    check = _compile(rule)
    return lambda value: type(value) is not dict or all(map(check, value))


def _any_of(rule, _):
    checks = [_compile(choice) for choice in rule]
    return lambda value: any(check(value) for check in checks)


def _form(rule, _):
    search = re.compile(rule).search
    return lambda value: type(value) is not str or (search(value) is not None and not value.endswith("\n"))


_MOST_COMPILED = 500
_COMPILED = {}
_KINDS = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
_KEYWORDS = {
    "$schema": lambda rule, _: lambda value: True,
    "title": lambda rule, _: lambda value: True,
    "type": _type,
    "const": lambda rule, _: lambda value: type(value) is str and value == rule,
    "enum": _enum,
    "pattern": _form,
    "maxLength": lambda rule, _: lambda value: type(value) is not str or len(value) <= rule,
    "minimum": lambda rule, _: lambda value: type(value) not in (int, float) or value >= rule,
    "maximum": lambda rule, _: lambda value: type(value) not in (int, float) or value <= rule,
    "exclusiveMinimum": lambda rule, _: lambda value: type(value) not in (int, float) or value > rule,
    "exclusiveMaximum": lambda rule, _: lambda value: type(value) not in (int, float) or value < rule,
    "minItems": lambda rule, _: lambda value: type(value) is not list or len(value) >= rule,
    "maxItems": lambda rule, _: lambda value: type(value) is not list or len(value) <= rule,
    "uniqueItems": lambda rule, _: lambda value: type(value) is not list or _surely_unique(value),
    "required": lambda rule, _: lambda value: type(value) is not dict or all(key in value for key in rule),
    "propertyNames": _property_names,
    "properties": _properties,
    "additionalProperties": _rest,
    "items": _items,
    "anyOf": _any_of,
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


def nearest(name, known, shown=None):
    """``name`` in words, or what is ``shown`` in its place, with the known name that it probably means."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    found = repr(name if shown is None else shown)
    return f"{found} (did you mean {close[0]!r}?)" if close else found


def _words(value):
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)[:200]


def _shown(value):
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

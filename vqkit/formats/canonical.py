"""Strict JSON in, RFC 8785 canonical JSON out.

The reader accepts exactly the values that the writer can write back to an equal value, and never repairs. It parses
with the standard library into a tree that still knows every pair and every number as written, then walks that tree
once, so that all faults of one text are reported together, each with its path.
"""

import itertools
import json
import math
import re

import rfc8785

from vqkit.errors import Problem, Rejected, raise_all

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_INTEGER = 2**53 - 1
EXPONENT_FROM = 1e21  # RFC 8785 writes integral floats below this as digits, which must then be exact integers
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"')  # possessive: no memory for a way back
_SPELLED_APART = re.compile(rb"[eE][-+0-9]|\.0(?![0-9])")
_LONG = re.compile(rb"(?<![.0-9])[0-9]{16}")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in _STEPS)


class _Pairs(list):
    """An object as written: its (key, value) pairs in order, duplicates included."""


class _Number(str):
    """A number as written."""


def loads(data, *, where="json", max_bytes=MAX_BYTES):
    """Parse strict JSON.

    Args:
        data: the bytes of one JSON text, UTF-8.
        where: how error messages name the text.
        max_bytes: longer input is rejected before it is parsed.

    Returns:
        dict, list, str, int, float, bool or None. An integer literal gives int, any other number float.

    Raises:
        Rejected: with every fault of the text and its path.
    """
    value, problems = parse(data, where=where, max_bytes=max_bytes)
    raise_all(Rejected, problems)
    return value


def parse(data, *, where="json", max_bytes=MAX_BYTES):
    """``loads`` for callers that go on checking: (value, problems).

    A value that can't be carried stands as None in the result. A text that is no JSON value at all still raises.
    """
    if len(data) > max_bytes:
        raise Rejected("E_JSON_SIZE", where, f"at most {max_bytes} bytes", f"{len(data)} bytes")
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Rejected("E_JSON_ENCODING", where, "UTF-8", f"byte {error.start} is not") from None
    if text.startswith("\ufeff"):
        raise Rejected("E_JSON_ENCODING", where, "no byte order mark", "U+FEFF at the start")
    try:
        tree = json.loads(
            text, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise Rejected("E_JSON_SYNTAX", where, "one JSON value", f"{error.msg} at {place}") from None
    except RecursionError:
        raise Rejected("E_JSON_NESTING", where, f"at most {MAX_DEPTH} levels", "more") from None
    problems = []
    return _build(tree, where, 0, problems), problems


def dumps(value):
    """The RFC 8785 bytes of ``value``; raises ``Rejected`` where ``loads`` would not give an equal value back."""
    problems = []
    _check(value, "value", 0, problems)
    raise_all(Rejected, problems)
    return rfc8785.dumps(value)


def loads_canonical(data, *, where="json", max_bytes=MAX_BYTES):
    """``loads``, and the bytes must already be the canonical form: what is hashed is what was read."""
    if len(data) <= max_bytes:
        value = _plain(bytes(data))
        if value is not None:
            return value
    value = loads(data, where=where, max_bytes=max_bytes)
    if not _is_canonical(value, bytes(data)):
        raise Rejected("E_JSON_CANONICAL", where, "RFC 8785 bytes", "another spelling of the same value")
    return value


def _plain(data):
    """The value of canonical bytes that hold nothing that needs a closer look, in a fraction of the time; else None.

    The standard library writes the canonical form but for numbers with an exponent or an ending ``.0``; where it gives
    the same bytes back there is no white space, no key twice or out of order, no minus zero and nothing that was lost
    in reading. What it would still let through is looked for: long integers, deep nesting, other keys than ASCII.
    """
    bare = _STRINGS.sub(b"", data)
    if _SPELLED_APART.search(bare) or _LONG.search(bare):
        return None
    depths = itertools.accumulate(map(_STEPS.get, bare.translate(None, _NO_BRACKET)))
    if max(depths, default=0) > MAX_DEPTH:
        return None
    try:
        value = json.loads(data.decode(), object_pairs_hook=_plain_object, parse_constant=_refuse)
        same = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode() == data
    except (ValueError, RecursionError):
        return None
    return value if same else None


def _plain_object(pairs):
    value = dict(pairs)
    return value if all(map(str.isascii, value)) else _refuse(value)


def _refuse(found):
    raise ValueError(found)


def _is_canonical(value, data):
    """Whether ``data`` is the RFC 8785 form of ``value``, which ``loads`` has read from it.

    The standard library writes the same bytes, many times faster, unless a number has an exponent or ends in ``.0``.
    """
    if not _SPELLED_APART.search(_STRINGS.sub(b"", data)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        if text.encode() == data:
            return True
    return rfc8785.dumps(value) == data


def _build(node, path, depth, problems):
    """The plain value of a parsed tree; faults are appended to ``problems``."""
    if depth > MAX_DEPTH:
        problems.append(
            Problem(code="E_JSON_NESTING", where=path, expected=f"at most {MAX_DEPTH} levels", found="more")
        )
        return None
    if isinstance(node, _Pairs):
        result = {}
        for key, child in node:
            place = f"{path}.{key}" if key.isascii() else f"{path}.{key!a}"
            if key in result:
                problems.append(
                    Problem(code="E_JSON_DUPLICATE_KEY", where=place, expected="each key once", found="the key again")
                )
            _check_key(key, place, problems)
            result[key] = _build(child, place, depth + 1, problems)
        return result
    if isinstance(node, list):
        return [
            int(child) if depth < MAX_DEPTH and _is_count(child) else _build(child, f"{path}[{i}]", depth + 1, problems)
            for i, child in enumerate(node)
        ]
    if isinstance(node, _Number):
        return _number(node, path, problems)
    _check(node, path, depth, problems)
    return node


def _is_count(node):
    """Whether a node is a short run of digits, which needs no further look: long lists of counts are common."""
    return type(node) is _Number and len(node) < 16 and node.isdigit()


def _number(text, path, problems):
    """The int or float that ``text`` spells, if it can be carried exactly."""
    found = text if len(text) <= 40 else f"{text[:37]}..."
    integral = text.lstrip("-").isdigit()
    if integral and len(text) > 17:
        problems.append(_number_problem(path, found))
        return None
    value = int(text) if integral else float(text)
    lost = value == 0 and (text.startswith("-") or any(digit in "123456789" for digit in text.lower().split("e")[0]))
    before = len(problems)
    if lost:
        problems.append(_number_problem(path, found))
    else:
        _check(value, path, 0, problems, found)
    return value if len(problems) == before else None


def _check(value, path, depth, problems, found=None):
    """Append every reason why ``value`` could not be written and read back as an equal value."""
    if depth > MAX_DEPTH:
        problems.append(
            Problem(code="E_JSON_NESTING", where=path, expected=f"at most {MAX_DEPTH} levels", found="more")
        )
    elif value is None or isinstance(value, bool):
        pass
    elif type(value) is int:
        if abs(value) > MAX_INTEGER:
            problems.append(_number_problem(path, found or f"an integer of {value.bit_length()} bits"))
    elif type(value) is float:
        beyond = MAX_INTEGER < abs(value) < EXPONENT_FROM
        if not math.isfinite(value) or beyond or (value == 0 and math.copysign(1, value) < 0):
            problems.append(_number_problem(path, found or repr(value)))
    elif type(value) is str:
        if not _is_unicode(value):
            problems.append(
                Problem(code="E_JSON_STRING", where=path, expected="Unicode text", found="a lone surrogate")
            )
    elif type(value) in (list, tuple):
        for i, child in enumerate(value):
            _check(child, f"{path}[{i}]", depth + 1, problems)
    elif type(value) is dict:
        for key, child in value.items():
            place = f"{path}.{key!a}" if not isinstance(key, str) or not key.isascii() else f"{path}.{key}"
            _check_key(key, place, problems)
            _check(child, place, depth + 1, problems)
    else:
        problems.append(Problem(code="E_SCHEMA_TYPE", where=path, expected="a JSON value", found=type(value).__name__))


def _check_key(key, place, problems):
    if not isinstance(key, str) or not key.isascii():
        problems.append(Problem(code="E_JSON_KEY", where=place, expected="an ASCII key", found=ascii(key)))


def _is_unicode(text):
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _number_problem(path, found):
    return Problem(
        code="E_JSON_NUMBER", where=path, expected="a finite number that JSON carries exactly", found=str(found)
    )

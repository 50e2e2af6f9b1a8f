"""One exception tree; each cause has a stable code, each branch an exit code.

    VqkitError
    ├── InternalError        exit 1   a fault of this package
    ├── UsageError           exit 2   the command line or a config
    ├── Rejected             exit 3   an artifact or a dataset is not valid
    ├── Refused              exit 4   valid, but a rule forbids it
    ├── RunFailed            exit 5   the run did not complete
    ├── VerificationFailed   exit 6   the evidence is not what it claims to be
    └── Incomplete           exit 7   something that is needed does not exist yet

An exception carries every problem that was found, not the first one. ``CODES`` is closed: a problem with a
code that is not listed there can't be made, so a code in a log always has an explanation.
"""

import argparse
import json
import sys
import traceback
from dataclasses import asdict, dataclass

CODES = {
    "E_INTERNAL": "a fault of vqkit itself",
    # usage
    "E_USAGE": "the command line can't be understood",
    "E_CONFIG": "a config file does not compose",
    "E_YAML": "not YAML, or a key stands twice",
    # canonical JSON
    "E_JSON_ENCODING": "JSON must be UTF-8 without a byte order mark",
    "E_JSON_SYNTAX": "not JSON (RFC 8259), or data behind the value",
    "E_JSON_NESTING": "nested too deeply",
    "E_JSON_SIZE": "larger than this format may be",
    "E_JSON_DUPLICATE_KEY": "a key stands twice in one object",
    "E_JSON_KEY": "a key is not plain ASCII",
    "E_JSON_NUMBER": "a number that can't be carried exactly (NaN, infinity, overflow, underflow, -0, beyond 2^53-1)",
    "E_JSON_STRING": "a string with a lone surrogate",
    "E_JSON_CANONICAL": "the bytes are not the RFC 8785 form of their value",
    # schemas
    "E_SCHEMA_UNKNOWN_KEY": "a key that the format does not have",
    "E_SCHEMA_MISSING_KEY": "a key that the format requires is missing",
    "E_SCHEMA_TYPE": "a value of another JSON type than the format's",
    "E_SCHEMA_VALUE": "a value outside what the format allows",
    # files
    "E_FILE_MISSING": "a file does not exist",
    "E_FILE_KIND": "not a regular file (a link, a folder, a pipe or a device)",
    "E_FILE_SIZE": "a file is larger than its format allows",
    "E_FILE_EXISTS": "a write-once file exists already",
    "E_FILE_WRITE": "a file could not be written in full",
    "E_FILE_ACCESS": "the file system does not let a file be opened, made, moved or locked",
    "E_TENSORS": "not a safetensors file of the expected names, types and shapes",
    "E_KEY": "not a key of the kind that is needed",
    # interventions
    "E_KNOB_UNKNOWN": "no knob of that name",
    "E_KNOB_NOT_ALLOWED": "the contract does not let this knob vary",
    "E_KNOB_DOMAIN": "a knob value outside its domain",
    "E_KNOB_TWICE": "a knob is changed twice",
    "E_KNOB_FROM": "`from` is not the knob's value in `previous`",
    "E_KNOB_DECISION_POINT": "a knob that belongs to another decision point",
    "E_KNOB_CONFLICT": "a combination of knobs that is not declared",
    "E_CITATION": "a citation that names no changed knob",
    "E_CONTRACT_NAME": "the artifact was written for another contract",
    # contract and rules
    "E_CONTRACT_INVALID": "the contract contradicts itself",
    "E_CONTRACT_UNKNOWN": "no contract of that name",
    "E_CONTRACT_LOCK": "a contract differs from what was locked under its name",
    "E_CONTRACT_FROZEN": "an override of something that the contract freezes",
    "E_NO_EFFECT": "the intervention changes nothing that executes",
    "E_ARM_TWICE": "two arms of a sweep have the same label or execute the same knobs",
    "E_SEED_FIREWALL": "a seed of the other phase",
    "E_MARKS": "marks that the contract does not have",
    "E_DATASET_NOT_ALLOWED": "the contract does not allow this dataset",
    "E_DEVICE": "the device is not there",
    "E_CALIBRATION": "a calibration that this campaign can't be planned from",
    "E_CAMPAIGN_MISSING": "no campaign lies in this folder",
    "E_CAMPAIGN_CHANGED": "another campaign lies in this folder",
    "E_NOT_FROZEN": "unblinding before the scores are frozen",
    "E_FROZEN": "the scores are frozen already",
    # data
    "E_DATA_SOURCE": "the data source is not there or not of a known layout",
    "E_DATA_FILE": "a file of a data source can't be read, is cut off or is not what its name says",
    "E_DATA_DOWNLOAD": "the download failed",
    "E_DATA_IMAGE": "a file is not an image, or not of the right size or colour",
    "E_DATA_COLUMN": "a table lacks a column or has it in another type",
    "E_DATA_EMPTY": "a split holds no image, or fewer than asked for",
    "E_DATA_LABEL": "a label that can't be read",
    "E_DATASET_NAME": "a dataset name that is not earned",
    "E_DATASET_CHANGED": "another dataset is prepared under this name",
    "E_DATASET_FILE": "the canonical dataset file is damaged",
    # runs
    "E_RUN_NONFINITE": "a loss or a gradient was not finite",
    "E_RUN_INVALID": "the run broke one of its own rules",
    "E_RUN_CANCELLED": "the run was cancelled",
    "E_RUN_BUDGET": "the run exceeded its budget",
    "E_RUN_ERROR": "the run ended with an error",
    "E_EXECUTOR": "the executor can't work here: its extra or its cluster is missing",
    "E_WORKER": "worker processes die before they take a cell",
    # verification
    "E_VERIFIER_INPUT": "the verifier holds another source, dataset or contract than the campaign names",
    "E_VERIFY": "a check of the verification ladder failed",
    "E_VERIFY_NOT_RUN": "a check of the verification ladder was not run, because an input of it is missing",
    "E_RUN_INCOMPLETE": "a run without a manifest",
    "E_CAMPAIGN_INCOMPLETE": "cells of the campaign have no outcome yet",
    "E_STAGE_MISSING": "an earlier stage has not written its file yet",
    # analysis
    "E_ANALYSIS_INPUT": "scores that can't be analysed together",
    "E_ANALYSIS_BINDING": "a file of the campaign that is not the one that another file names by its digest",
    "E_ANALYSIS_PLAN": "scores that were planned under another analysis",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One finding: its code, the place, what was expected there and what was found."""

    code: str
    where: str
    expected: str
    found: str

    def __post_init__(self):
        if self.code not in CODES:
            raise InternalError("E_INTERNAL", "errors.CODES", "a listed code", self.code)

    def __str__(self):
        return f"error[{self.code}] {self.where}: expected {self.expected}, found {self.found}"


class VqkitError(Exception):
    """The base of every error that vqkit raises on purpose; ``problems`` holds all findings, in order."""

    exit_code = 1

    def __init__(self, code_or_problems, where="", expected="", found=""):
        if isinstance(code_or_problems, str):
            code_or_problems = [Problem(code=code_or_problems, where=where, expected=expected, found=found)]
        self.problems = tuple(code_or_problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self):
        return type(self), (list(self.problems),)

    @property
    def codes(self):
        """The codes of all problems, in order."""
        return tuple(problem.code for problem in self.problems)

    def to_json(self):
        """The problems for a machine: one JSON object on one line."""
        return json.dumps({"exit": self.exit_code, "errors": [asdict(problem) for problem in self.problems]})


class InternalError(VqkitError):
    """A fault of this package."""

    exit_code = 1


class UsageError(VqkitError):
    """The command line or a config file."""

    exit_code = 2


class Rejected(VqkitError):
    """An artifact, a dataset or a stored file is not valid."""

    exit_code = 3


class Refused(VqkitError):
    """Well-formed, but forbidden by a rule."""

    exit_code = 4


class RunFailed(VqkitError):
    """The run ended in another state than ``complete``; its evidence is sealed all the same."""

    exit_code = 5


class VerificationFailed(VqkitError):
    """Evidence is not what it claims to be."""

    exit_code = 6


class Incomplete(VqkitError):
    """Something that is needed does not exist yet."""

    exit_code = 7


def raise_all(kind, problems):
    """Raise ``kind`` with all ``problems``; do nothing when there are none."""
    problems = list(problems)
    if problems:
        raise kind(problems)


class ArgumentParser(argparse.ArgumentParser):
    """argparse whose complaints are ``UsageError``, so that every error of a command has one form."""

    def error(self, message):
        raise UsageError("E_USAGE", self.prog, f"arguments as `{self.prog} --help` lists them", message)


def guarded(main, argv):
    """Run ``main(argv)`` as a command: its exit code, with every problem on stderr (as JSON when argv has --json)."""
    try:
        return main(argv) or 0
    except VqkitError as raised:
        error = raised
    except KeyboardInterrupt:
        error = RunFailed("E_RUN_CANCELLED", "command", "the end", "an interrupt")
    except BrokenPipeError:
        return InternalError.exit_code
    except Exception:
        traceback.print_exc()
        error = InternalError("E_INTERNAL", "command", "no exception", "the one above")
    print(error.to_json() if "--json" in argv else error, file=sys.stderr)
    return error.exit_code

"""Files that people hand to commands; every mistake in one is a sentence with the place of it."""

import json
import sys
from pathlib import Path

from infinipipe_contract.codec import plan_from_json, profile_from_json
from infinipipe_contract.errors import InvalidPlanError, InvalidProfileError
from infinipipe_contract.json_text import JsonTextError, parse_json
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.validate import validate
from infinipipe_planner.errors import PlannerError
from infinipipe_planner.planned_lengths import planned_lengths

STDIN = Path("-")
MAX_SHOWN_CHARACTERS = 40
MAX_LENGTH_TOKENS = 2**63 - 1


class InputError(PlannerError):
    """A file cannot be read or does not hold what it should."""


def read_profile(path: Path) -> Profile:
    """Read a profile file.

    Raises:
        InputError: If it cannot be read or is not a profile.
    """
    try:
        return profile_from_json(_read_text(path))
    except InvalidProfileError as error:
        raise InputError(f"{path}: {error}") from None


def read_plan(path: Path, profile: Profile | None = None) -> ExecutionPlan:
    """Read a plan file, as ``infinipipe plan`` and ``show`` write it with ``--json``.

    Args:
        path: The file; "-" is standard input.
        profile: What the plan must be valid for; without it, only its form is checked.

    Raises:
        InputError: If it cannot be read, is not a plan, or breaks a rule of the profile.
    """
    name = "standard input" if path == STDIN else str(path)
    try:
        plan = plan_from_json(_plan_text(_read_text(path)))
        if profile is not None:
            validate(plan, planned_lengths(plan), profile)
    except InvalidPlanError as error:
        raise InputError(f"{name}: {error}") from None
    return plan


def _plan_text(text: str) -> str:
    """Take the plan out of what ``show`` writes, which holds more; other text is left as it is."""
    try:
        content = parse_json(text)
    except JsonTextError:
        return text
    return json.dumps(content["plan"]) if isinstance(content, dict) and "plan" in content else text


def read_lengths(path: Path) -> list[int]:
    """Read the lengths of a batch in tokens: ``{"lengths": [...]}``, a JSON list, or one length a line.

    Args:
        path: The file; "-" is standard input.

    Raises:
        InputError: If it cannot be read or holds something else than whole numbers.
    """
    name = "standard input" if path == STDIN else str(path)
    text = _read_text(path)
    if not text.lstrip().startswith(("{", "[")):
        return [
            _parse_length(line.strip(), f"{name}, line {number}")
            for number, line in enumerate(text.splitlines(), start=1)
            if line.strip()
        ]
    try:
        content = parse_json(text)
    except JsonTextError as error:
        raise InputError(f"{name}: {error}") from None
    if isinstance(content, dict):
        if "lengths" not in content:
            raise InputError(f'{name}: the key "lengths" is missing')
        content = content["lengths"]
    if not isinstance(content, list):
        raise InputError(f"{name}: lengths must be a list of whole numbers, found {type(content).__name__}")
    return [_check_length(value, f"{name}, length {index}") for index, value in enumerate(content)]


def _read_text(path: Path) -> str:
    try:
        return sys.stdin.read() if path == STDIN else path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (UTF-8), byte {error.start}") from None


def _parse_length(word: str, place: str) -> int:
    digits = word.removeprefix("-")
    is_whole = digits.isascii() and digits.isdecimal() and len(digits) <= MAX_SHOWN_CHARACTERS
    return _check_length(int(word) if is_whole else word, place)


def _check_length(value: object, place: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_LENGTH_TOKENS:
        return value
    shown = json.dumps(value)
    shown = shown if len(shown) <= MAX_SHOWN_CHARACTERS else shown[:MAX_SHOWN_CHARACTERS] + "..."
    raise InputError(f"{place}: {shown} is not a whole number of tokens")

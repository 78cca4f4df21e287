"""Suggestions for misspelt names, so that every refusal of an unknown word names the nearest known one."""

import difflib
from collections.abc import Iterable

MAX_WORD_CHARACTERS = 80
"""Longer words are cut before they are compared and shown: comparing takes time that grows with the word."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the known word that looks most like the given one; None when none does."""
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """Say that a word is unknown and what could be meant: ``unknown policy 'papr'; did you mean 'paper'?``."""
    known = sorted(known)
    word = word if len(word) <= MAX_WORD_CHARACTERS else word[:MAX_WORD_CHARACTERS] + "..."
    guess = nearest(word, known)
    hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(known)}"
    return f"unknown {what} {word!r}; {hint}"

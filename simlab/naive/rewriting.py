"""Replacing a piece of one of production's statements, and failing loudly when it is no longer there."""

from __future__ import annotations

__all__ = ["rewritten", "rewritten_everywhere"]


def rewritten(statement: str, *changes: tuple[str, str]) -> str:
    """Return a statement with each (old, new) replaced, where each old must stand exactly once.

    Raises
    ------
    AssertionError
        If production's statement has changed, so that the mistake would silently be no mistake any more.
    """
    for old, new in changes:
        if statement.count(old) != 1:
            raise AssertionError(f"this is {statement.count(old)} times in the statement, not once: {old!r}")
        statement = statement.replace(old, new)
    return statement


def rewritten_everywhere(statement: str, old: str, new: str, *, times: int) -> str:
    """Return a statement with a piece replaced wherever it stands, which must be so many times.

    Raises
    ------
    AssertionError
        If production's statement has changed.
    """
    if statement.count(old) != times:
        raise AssertionError(f"this is {statement.count(old)} times in the statement, not {times}: {old!r}")
    return statement.replace(old, new)

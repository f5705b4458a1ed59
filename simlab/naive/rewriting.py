"""Replacing a piece of one of production's statements, and failing loudly when it is no longer there."""

from __future__ import annotations

__all__ = ["rewritten"]


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

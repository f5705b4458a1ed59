"""The report of a chaos run: one self-contained page, with its pictures beside it as PNG."""

from __future__ import annotations

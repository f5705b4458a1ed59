"""Named random streams, each derived from the run's seed by a stable hash.

A stream's name decides its numbers, not the order in which streams are made: adding a fault does not change
the arrivals. SHA-256 and never ``hash()``, which differs from process to process.
"""

from __future__ import annotations

import hashlib
import random

__all__ = ["Streams"]


class Streams:
    """The random streams of one run.

    Parameters
    ----------
    seed
        Any integer; the same seed gives the same streams on any machine.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, name: str) -> random.Random:
        """Return a new stream, always the same one for this seed and name."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return random.Random(int.from_bytes(digest, "big"))

"""The claims of a run as the timeline draws them, and the rows they are drawn in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from simlab.results import Result

__all__ = ["Claim", "Lanes", "claims_of", "lanes_of"]

_STOPS = ("executed", "raised", "aborted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, in virtual seconds.

    Attributes
    ----------
    lease_s
        The end of its lease, by the database, as last renewed.
    began_s, stopped_s
        Its handler, from beginning to end; power loss ends it too. None when it never ran.
    ended_s
        When the database saw the claim end; the end of the run when it did not.
    last_s
        When its worker last had to do with it, which may be long after it was lost.
    """

    job: str
    job_id: str
    token: int
    host: str
    claimed_s: float
    lease_s: float
    began_s: float | None
    stopped_s: float | None
    ended_s: float
    swept: bool
    last_s: float

    @property
    def label(self) -> str:
        """What is written on it: the beginning of the job's name, and the token."""
        return f"{self.job[:4]} t{self.token}"

    @property
    def free_s(self) -> float:
        """When its row is free for another claim."""
        lease_s = self.lease_s if self.swept else self.claimed_s
        return max(lease_s, self.ended_s, self.last_s, self.stopped_s or 0.0)


def claims_of(result: Result) -> list[Claim]:
    """Return the claims of a run in the order they were made."""
    events = result.events
    if events.empty:
        return []
    end_s = float(events["time_s"].max())
    crashes = events[(events["kind"] == "fault") & (events["detail"] == "crash")]
    lost = {
        str(host): rows["time_s"].to_numpy(dtype=float)
        for host, rows in crashes.groupby("host", observed=True)
    }
    stopped = _last_events(events[events["kind"].isin(_STOPS)])
    last = _last_events(events[events["token"].notna()])
    claims = []
    for row in result.attempts.to_dict("records"):
        host, key = str(row["host"]), (str(row["job_id"]), int(row["token"]), str(row["host"]))
        began_s = None if pd.isna(row["executing_s"]) else float(row["executing_s"])
        stopped_s = None
        if began_s is not None:
            stopped_s = float(row["executed_s"]) if pd.notna(row["executed_s"]) else stopped.get(key, end_s)
            after = lost.get(host, np.empty(0))
            after = after[after >= began_s]
            stopped_s = min(stopped_s, float(after[0])) if len(after) else stopped_s
        claims.append(
            Claim(
                job=str(row["job"]),
                job_id=key[0],
                token=key[1],
                host=host,
                claimed_s=float(row["claimed_s"]),
                lease_s=end_s if pd.isna(row["lease_until_s"]) else float(row["lease_until_s"]),
                began_s=began_s,
                stopped_s=stopped_s,
                ended_s=end_s if pd.isna(row["ended_s"]) else float(row["ended_s"]),
                swept=row["end"] == "swept",
                last_s=last.get(key, float(row["claimed_s"])),
            )
        )
    return claims


def _last_events(events: pd.DataFrame) -> dict[tuple[str, int, str], float]:
    """Return when each claim, by job, token and host, last had one of these events."""
    keys = zip(events["job_id"].astype(str), events["token"], events["host"].astype(str), strict=True)
    return {
        (job_id, int(token), host): float(time_s)
        for (job_id, token, host), time_s in zip(keys, events["time_s"], strict=True)
    }


class Lanes:
    """Which rows of the picture a host has: overlapping claims of a host lie above each other.

    Attributes
    ----------
    rows
        How many rows there are in all, without the world's.
    spans
        The first row of each host, and the first that is not its own.
    """

    def __init__(self, hosts: Iterable[str], claims: Sequence[Claim]) -> None:
        self.rows = 0
        self.spans: dict[str, tuple[int, int]] = {}
        self._placed: dict[tuple[str, int], list[tuple[Claim, int]]] = {}
        for host in sorted(hosts, key=_natural):
            free: list[float] = []
            mine = sorted(
                (claim for claim in claims if claim.host == host), key=lambda claim: claim.claimed_s
            )
            for claim in mine:
                row = next((n for n, at_s in enumerate(free) if at_s <= claim.claimed_s), len(free))
                free[row : row + 1] = [claim.free_s]
                self._placed.setdefault((claim.job_id, claim.token), []).append((claim, self.rows + row))
            self.spans[host] = (self.rows, self.rows + max(1, len(free)))
            self.rows = self.spans[host][1]

    def row(self, job_id: str, token: int, host: str, at_s: float) -> int | None:
        """Return the row of the claim that a host means by a job and a token, if there is one.

        A mistake may give the same token twice. A host means its own claim, and else the newest there was by then.
        """
        placed = [
            (claim.host == host, claim.claimed_s, row)
            for claim, row in self._placed.get((job_id, token), ())
            if claim.claimed_s <= at_s
        ]
        return max(placed)[2] if placed else None

    def row_of(self, claim: Claim) -> int:
        """Return the row that a claim is drawn in."""
        return next(row for other, row in self._placed[claim.job_id, claim.token] if other is claim)

    def edges(self, host: str) -> tuple[float, float]:
        """Return the upper and the lower edge of a host's lane."""
        first, last = self.spans[host]
        return first - 0.5, last - 0.5

    def middle(self, host: str) -> float:
        """Return the middle of a host's lane."""
        upper, lower = self.edges(host)
        return (upper + lower) / 2


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort w2 before w10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def lanes_of(result: Result, claims: Sequence[Claim]) -> Lanes:
    """Return a lane for each host that ever claimed, or that was down or stood still."""
    events = result.events
    absent = events[(events["kind"] == "fault") & events["detail"].isin(["crash", "pause"])]
    return Lanes({claim.host for claim in claims} | set(absent["host"].astype(str)), claims)

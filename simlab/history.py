"""The history of a run: what happened at the ports and on the hosts, as columns of integers.

Owns the vocabulary of event kinds, the canonical binary form, and the digest: a SHA-256 over the events and
the final tables. Names (hosts, kinds, details, jobs) are interned in the order of their first appearance, so
that a million jobs fit and the same run always gives the same bytes. Data frames are made on demand.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd

from simlab.errors import InvalidExperiment

__all__ = ["KINDS", "Event", "History", "describe_kind"]

KINDS = {
    "enqueued": "the store inserted a job",
    "claimed": "the store leased a job to a worker",
    "started": "the store marked a job RUNNING",
    "renewed": "the store extended a lease",
    "finished": "the store wrote an outcome",
    "recovered": "the store had written this outcome before; the first reply was lost",
    "rejected": "the store refused a write whose lease is no longer the row's",
    "swept": "the store ended an abandoned lease, or a job past its age",
    "cancelled": "the store answered a cancellation",
    "replayed": "the store made a dead letter PENDING again",
    "fired": "the timer handed a job to the pool",
    "early": "the database said that the job is not due yet; it waits on",
    "executing": "a handler began",
    "executed": "a handler returned",
    "raised": "a handler raised",
    "aborted": "a worker took a job away from its handler",
    "dropped": "a worker let go of a job without running it",
    "released": "a stopping worker gave a job back",
    "unavailable": "a worker's call of the store was not answered",
    "stopping": "a worker was asked to stop, to drain and to end",
    "effect": "the outside world was changed",
    "duplicate": "the outside world refused a change it had already seen",
    "fault": "the laboratory did something to a host, the network or the store",
}
"""Every kind of event, and what it says."""


def describe_kind(kind: str) -> str:
    """Return the sentence that explains a kind of event."""
    return KINDS[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, its names spelled out.

    `time_us` is virtual time from the start of the run; `db_us` is the database's time since the Unix epoch,
    or -1 where there was none to ask; `due_us` (the run time) and `until_us` (the end of the lease) are on the
    database's clock too. Numbers are -1 where there is none.
    """

    time_us: int
    db_us: int
    host: str
    incarnation: int
    kind: str
    job: UUID | None
    token: int
    attempt: int
    due_us: int
    until_us: int
    detail: str


_COLUMNS = tuple(field.name for field in fields(Event))
_INTERNED = ("host", "kind", "detail")

# What reading a file that is anything at all can raise.
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)


class _Names:
    """Strings (or job identities) as small integers, in the order of first appearance."""

    __slots__ = ("_numbers", "names")

    def __init__(self) -> None:
        self.names: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, name: Any) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number


class History:
    """Events in the order they happened. Append only."""

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in _COLUMNS}
        self._names = {name: _Names() for name in _INTERNED}
        self._jobs = _Names()

    def __len__(self) -> int:
        return len(self._columns["time_us"])

    def record(
        self,
        kind: str,
        *,
        time_us: int,
        db_us: int = -1,
        host: str = "",
        incarnation: int = 0,
        job: UUID | None = None,
        token: int = -1,
        attempt: int = -1,
        due_us: int = -1,
        until_us: int = -1,
        detail: str = "",
    ) -> None:
        """Append one event."""
        if kind not in KINDS:
            raise InvalidExperiment(f"unknown kind of event {kind!r}; add it to simlab.history.KINDS")
        columns = self._columns
        columns["time_us"].append(time_us)
        columns["db_us"].append(db_us)
        columns["host"].append(self._names["host"].number(host))
        columns["incarnation"].append(incarnation)
        columns["kind"].append(self._names["kind"].number(kind))
        columns["job"].append(-1 if job is None else self._jobs.number(job))
        columns["token"].append(token)
        columns["attempt"].append(attempt)
        columns["due_us"].append(due_us)
        columns["until_us"].append(until_us)
        columns["detail"].append(self._names["detail"].number(detail))

    def event(self, index: int) -> Event:
        """Return one event with its names."""
        columns = self._columns
        job = columns["job"][index]
        return Event(
            time_us=columns["time_us"][index],
            db_us=columns["db_us"][index],
            host=self._names["host"].names[columns["host"][index]],
            incarnation=columns["incarnation"][index],
            kind=self._names["kind"].names[columns["kind"][index]],
            job=None if job < 0 else self._jobs.names[job],
            token=columns["token"][index],
            attempt=columns["attempt"][index],
            due_us=columns["due_us"][index],
            until_us=columns["until_us"][index],
            detail=self._names["detail"].names[columns["detail"][index]],
        )

    def __iter__(self) -> Iterator[Event]:
        return (self.event(index) for index in range(len(self)))

    def digest(self, tables: Sequence[Sequence[Any]] = ()) -> str:
        """Return a SHA-256, in hex, over the events and the rows of the final tables.

        Parameters
        ----------
        tables
            Tables of rows that JSON can hold, in a fixed order.
        """
        sha = hashlib.sha256()
        for chunk in self._canonical():
            sha.update(chunk)
        for table in tables:
            sha.update(b"\x00table\x00")
            for row in table:
                sha.update(json.dumps(row, sort_keys=True, separators=(",", ":")).encode())
                sha.update(b"\n")
        return sha.hexdigest()

    def _canonical(self) -> Iterator[bytes]:
        for name in _COLUMNS:
            yield name.encode() + b"\x00"
            yield _little_endian(self._columns[name])
        for name in _INTERNED:
            # As JSON, so that no text in a detail can be mistaken for the end of one name and the next's beginning.
            yield json.dumps(self._names[name].names).encode() + b"\x01"
        for job in self._jobs.names:
            yield job.bytes

    def frame(self) -> pd.DataFrame:
        """Return the events as a tidy frame, one row an event.

        Columns: `time_s` (virtual seconds from the start), `time_us`, `db_us` (nullable), `host`, `incarnation`,
        `kind` (categories), `job` (the identity's first eight characters, a category, nullable), `job_id`,
        `token`, `attempt`, `due_us`, `until_us` (nullable), `detail`.
        """
        columns = {name: np.frombuffer(data, dtype=np.int64) for name, data in self._columns.items()}
        jobs = [str(job) for job in self._jobs.names]
        # Nullable integers: a column of floats would lose microseconds since the epoch.
        return pd.DataFrame(
            {
                "time_s": columns["time_us"] / 1e6,
                "time_us": columns["time_us"].copy(),
                "db_us": _nullable(columns["db_us"]),
                "host": _category(columns["host"], self._names["host"].names),
                "incarnation": columns["incarnation"].copy(),
                "kind": _category(columns["kind"], self._names["kind"].names),
                "job": _category(columns["job"], short_names(jobs)),
                "job_id": _category(columns["job"], jobs),
                "token": _nullable(columns["token"]),
                "attempt": _nullable(columns["attempt"]),
                "due_us": _nullable(columns["due_us"]),
                "until_us": _nullable(columns["until_us"]),
                "detail": _category(columns["detail"], self._names["detail"].names),
            }
        )

    def save(self, path: Path) -> None:
        """Write the history to one compressed file."""
        names = {name: self._names[name].names for name in _INTERNED}
        names["job"] = [str(job) for job in self._jobs.names]
        np.savez_compressed(
            path,
            allow_pickle=False,
            names=np.frombuffer(json.dumps(names).encode(), dtype=np.uint8),
            **{name: np.frombuffer(data, dtype=np.int64) for name, data in self._columns.items()},
        )

    @classmethod
    def load(cls, path: Path) -> History:
        """Read a history back.

        Raises
        ------
        InvalidExperiment
            If the file is missing or is not a history.
        """
        history = cls()
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                names = json.loads(data["names"].tobytes())
                for name in _COLUMNS:
                    history._columns[name] = array("q", data[name].astype(np.int64).tobytes())
            for name in _INTERNED:
                for text in names[name]:
                    history._names[name].number(text)
            for text in names["job"]:
                history._jobs.number(UUID(text))
            history._check_columns()
        except _UNREADABLE as error:
            raise InvalidExperiment(f"{path} is not a saved history: {error}") from error
        return history

    def _check_columns(self) -> None:
        """Refuse columns of unequal length, and numbers of names that there are not."""
        if len({len(column) for column in self._columns.values()}) != 1:
            raise ValueError("its columns are not equally long")
        known = {**self._names, "job": self._jobs}
        for name, interned in known.items():
            lowest = -1 if name == "job" else 0
            column = self._columns[name]
            if column and not lowest <= min(column) <= max(column) < len(interned.names):
                raise ValueError(f"it names a {name} that it does not know")


def short_names(jobs: Sequence[str]) -> list[str]:
    """Shorten identities to their first eight characters, or as many as keep them apart."""
    for length in range(8, 37):
        short = [job[:length] for job in jobs]
        if len(set(short)) == len(short):
            return short
    return list(jobs)


def _category(codes: Any, names: Sequence[str]) -> pd.Categorical[Any]:
    return pd.Categorical.from_codes(codes, categories=pd.Index(list(names), dtype=object))


def _nullable(values: Any) -> Any:
    return pd.arrays.IntegerArray(values.copy(), values < 0)


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "little":
        return values.tobytes()
    swapped = array("q", values)
    swapped.byteswap()
    return swapped.tobytes()

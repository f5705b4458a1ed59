"""The model and PostgreSQL, asked the same at the same virtual time; the first difference is an error.

Every step is remembered as the line of Python that repeats it, so that whatever differs can be handed to
somebody as a program.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, fields, is_dataclass
from typing import Any
from uuid import UUID

from scheduler.jobs import LeaseRef, NewJob
from scheduler.store import ClaimReply, ClaimRequest, Outcome
from simlab.pgserver import throwaway_postgres
from simlab.store import ModelStore
from tests.contract.lab import BEGINNING_US, Asked, LabStore, ModelLabStore, PostgresLabStore, job_id

__all__ = ["Difference", "Duel", "duel"]


class Difference(AssertionError):
    """The model and PostgreSQL differ; `script` is a program that shows it."""

    def __init__(self, what: str, script: str) -> None:
        super().__init__(f"{what}\n\nThis program shows it:\n\n{script}")
        self.what = what
        self.script = script


class Duel:
    """Two stores in step.

    Parameters
    ----------
    model, postgres
        The stores, empty, their clocks at the beginning.
    """

    def __init__(self, model: ModelLabStore, postgres: PostgresLabStore) -> None:
        self._stores: tuple[LabStore, LabStore] = (model, postgres)
        self._model_class = type(model.store)
        self._lines: list[str] = []
        self._waiting: list[tuple[str, Asked[Any], Asked[Any]]] = []

    # The state of things, as the two agree on it.

    @property
    def now_us(self) -> int:
        """The database's time."""
        return self._stores[0].now_us

    @property
    def waiting(self) -> list[str]:
        """The verbs that wait for a lock, in the order asked."""
        return [verb for verb, _, _ in self._waiting]

    def rows(self) -> list[Any]:
        """Return the table."""
        return self._stores[0].table()

    def locked(self, number: int) -> bool:
        """Say whether a job's row is locked by somebody."""
        return self._stores[0].locks.locked(job_id(number))

    # Verbs of the store. Each returns the reply, or None when it waits for a lock.

    def enqueue(self, *jobs: NewJob) -> Any:
        return self._ask("enqueue", jobs, lambda lab: lab.store.enqueue(jobs))

    def claim(self, request: ClaimRequest) -> ClaimReply:
        reply: ClaimReply = self._ask("claim", (request,), lambda lab: lab.store.claim(request))
        return reply

    def sweep(self, *, limit: int) -> Any:
        return self._ask("sweep", (), lambda lab: lab.store.sweep(limit=limit), limit=limit)

    def start(self, *refs: LeaseRef) -> Any:
        return self._ask("start", refs, lambda lab: lab.store.start(refs))

    def heartbeat(self, *refs: LeaseRef, lease_us: int) -> Any:
        return self._ask(
            "heartbeat", refs, lambda lab: lab.store.heartbeat(refs, lease_us=lease_us), lease_us=lease_us
        )

    def finish(self, *outcomes: Outcome) -> Any:
        return self._ask("finish", outcomes, lambda lab: lab.store.finish(outcomes))

    def cancel(self, *job_ids: UUID) -> Any:
        return self._ask("cancel", job_ids, lambda lab: lab.store.cancel(job_ids))

    def replay(self, *job_ids: UUID) -> Any:
        return self._ask("replay", job_ids, lambda lab: lab.store.replay(job_ids))

    def stats(self) -> Any:
        return self._ask("stats", (), lambda lab: lab.store.stats())

    # What happens around them.

    def advance_us(self, us: int) -> None:
        """Move the database's clock; back, too."""
        self._both("advance_us", (us,), lambda lab: lab.advance_us(us))

    def lock(self, *numbers: int) -> None:
        """Let somebody's open transaction take rows."""
        self._both("lock", numbers, lambda lab: lab.backend.lock([job_id(number) for number in numbers]))

    def unlock(self) -> None:
        """End that transaction."""
        self._both("unlock", (), lambda lab: lab.backend.unlock())

    def begin(self, *jobs: NewJob) -> None:
        """Let a client enqueue in a transaction that it leaves open."""
        self._both("begin", jobs, lambda lab: lab.begin(*jobs))

    def commit(self) -> None:
        """Commit that transaction."""
        self._both("commit", (), lambda lab: lab.commit())

    def roll_back(self) -> None:
        """Undo that transaction."""
        self._both("roll_back", (), lambda lab: lab.roll_back())

    def time_out(self) -> None:
        """Let the server give up whatever waits."""
        self._both("time_out", (), lambda lab: lab.time_out())

    # Asking both.

    def _ask(self, verb: str, arguments: Sequence[Any], ask: Callable[[LabStore], Any], **named: Any) -> Any:
        line = self._note(verb, arguments, named)
        model, postgres = (Asked(ask(lab)) for lab in self._stores)
        self._compare(f"whether {line} waits for a lock", not model.ended, not postgres.ended)
        if model.ended:
            self._compare(f"the reply to {line}", model.reply, postgres.reply)
        else:
            self._waiting.append((line, model, postgres))
        self._look()
        return model.reply if model.ended else None

    def _both(self, verb: str, arguments: Sequence[Any], act: Callable[[LabStore], Any]) -> None:
        line = self._note(verb, arguments, {})
        self._compare(f"the answer to {line}", *(act(lab) for lab in self._stores))
        self._look()

    def _look(self) -> None:
        """Compare whatever has been going on, and the tables."""
        for line, model, postgres in self._waiting:
            model.go_on()
            postgres.go_on()
            self._compare(f"whether {line} still waits for a lock", not model.ended, not postgres.ended)
            if model.ended:
                self._compare(f"the reply, in the end, to {line}", model.reply, postgres.reply)
        self._waiting = [asked for asked in self._waiting if not asked[1].ended]
        self._compare("the table", *(lab.table() for lab in self._stores))

    def _note(self, verb: str, arguments: Sequence[Any], named: dict[str, Any]) -> str:
        told = [code(argument) for argument in arguments]
        told += [f"{name}={code(value)}" for name, value in named.items()]
        line = f"both.{verb}({', '.join(told)})"
        self._lines.append(line)
        return line

    def _compare(self, what: str, model: Any, postgres: Any) -> None:
        if model != postgres:
            raise Difference(_told(what, model, postgres), self.script())

    def script(self) -> str:
        """Return a program that does what was done so far."""
        model = self._model_class
        return _SCRIPT.format(
            module=model.__module__, model=model.__qualname__, steps="\n    ".join(self._lines)
        )


_SCRIPT = '''\
"""The model and PostgreSQL, asked the same. Run it with the project's Python; it ends with the difference."""

from scheduler.jobs import LeaseRef, NewJob
from scheduler.store import ClaimRequest, Outcome, OutcomeKind
from {module} import {model}
from tests.contract.duel import duel
from tests.contract.lab import BEGINNING_US, job_id

with duel({model}) as both:
    {steps}
print("no difference")
'''


@contextmanager
def duel(model: type[ModelStore] = ModelStore) -> Iterator[Duel]:
    """Open both stores, PostgreSQL's on a throwaway server; a difference ends the program."""
    with ExitStack() as stack:
        server = stack.enter_context(throwaway_postgres())
        try:
            yield Duel(ModelLabStore(model), PostgresLabStore(server.dsn, stack))
        except Difference as difference:
            raise SystemExit(difference.what) from None


def _told(what: str, model: Any, postgres: Any) -> str:
    if isinstance(model, list) and isinstance(postgres, list) and len(model) == len(postgres):
        # Of a table, the rows that differ.
        pairs = [(one, other) for one, other in zip(model, postgres, strict=True) if one != other]
        model, postgres = (list(side) for side in zip(*pairs, strict=True))
    return f"{what} differs:\n  model:      {model}\n  PostgreSQL: {postgres}"


def code(value: Any) -> str:
    """Write a value as the Python that makes it."""
    if isinstance(value, UUID):
        return f"job_id({value.int})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if is_dataclass(value):
        told = [(field, getattr(value, field.name)) for field in fields(value)]
        named = [
            f"{field.name}={_instant(field.name, inner)}" for field, inner in told if inner != _default(field)
        ]
        return f"{type(value).__name__}({', '.join(named)})"
    if isinstance(value, tuple):
        return f"({''.join(code(inner) + ', ' for inner in value)})"
    return repr(value)


def _default(field: Any) -> Any:
    return field.default if field.default is not MISSING else MISSING


def _instant(name: str, value: Any) -> str:
    if name == "run_at_us" and value is not None:
        return f"BEGINNING_US + {value - BEGINNING_US}"
    return code(value)

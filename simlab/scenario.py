"""What a scenario is: a story with sizes, faults, checks that matter, and variants with one decision replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler.policy import WorkerSettings
from scheduler.postgres import PostgresStore, Queries
from scheduler.store import Store
from scheduler.worker import Worker
from simlab.checks import CHECKS
from simlab.effects import EffectMode
from simlab.errors import InvalidExperiment, UnknownScenario
from simlab.faults import Fault
from simlab.locks import RowLocks
from simlab.network import Latency
from simlab.store import ModelStore
from simlab.workloads import Experiment, Workload
from simlab.world import World

__all__ = ["Rewrite", "Scenario", "Sizes", "Variant", "Wrap"]

Rewrite = Callable[[Queries], Mapping[str, str]]
"""From production's statements to the ones that replace some of them."""

Wrap = Callable[[Store, RowLocks], Store]
"""From a store, and the row locks in front of which virtual time can pass, to a store."""

Sizes = Mapping[str, int]
"""The numbers of a run that can be turned up, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The real scheduler with one decision replaced: a famous mistake.

    Attributes
    ----------
    says
        The mistake in one sentence.
    caught_by
        The checks that must say INVALID.
    model_store, postgres_store, rewrite
        The same replaced decision for both stores: a subclass of the model; a subclass of the real one, or only
        a function from production's statements to the replaced ones, by their file's name in ``scheduler/sql``.
    wrap
        A replaced decision that is the same in front of either store: from a store to a store.
    worker_class
        A worker with one of its parts replaced.
    effect_mode
        What the outside world checks.
    """

    name: str
    says: str
    caught_by: tuple[str, ...]
    model_store: type[ModelStore] = ModelStore
    postgres_store: type[PostgresStore] = PostgresStore
    rewrite: Rewrite | None = None
    wrap: Wrap | None = None
    worker_class: type[Worker] = Worker
    effect_mode: EffectMode = EffectMode.IDEMPOTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A story that can be told with any seed.

    Attributes
    ----------
    teaches
        One line.
    sizes
        The names and default values of what can be turned up.
    small
        Smaller values for when the story is told many times over; the others stay as they are.
    faults
        The plan of faults for given sizes.
    headline
        Whether it is one of the stories to tell first.
    build
        Puts hosts, workers and load into a world.
    until_us, drain_us
        How long the story of given sizes runs, in virtual microseconds, and how long the workers then have
        to drain.
    lateness_bound_us
        How late a job may begin once the faults are over, or a function of the sizes that says so; None when the
        story promises nothing.
    settled
        Says that the story is over before its time; by default it takes all of its time.
    draw, told_with
        For a scenario that the seed invents: draws load, faults and orderings from the seed and the sizes;
        and returns the scenario as told with a load and a plan of faults, whose bounds follow from both.
    """

    name: str
    teaches: str
    sizes: Sizes
    small: Sizes = field(default_factory=dict)
    settings: WorkerSettings
    faults: Callable[[Sizes], tuple[Fault, ...]]
    build: Callable[[World, Sizes, WorkerSettings], None]
    until_us: Callable[[Sizes], int]
    drain_us: int = 120_000_000
    lateness_bound_us: int | Callable[[Sizes], int] | None = None
    latency: Latency = field(default_factory=Latency)
    checks: tuple[str, ...] = tuple(CHECKS)
    headline: bool = False
    variants: tuple[Variant, ...] = ()
    settled: Callable[[World], bool] | None = None
    draw: Callable[[int, Sizes], Experiment] | None = None
    told_with: Callable[[Scenario, Workload, tuple[Fault, ...]], Scenario] | None = None

    def lateness_us(self, sizes: Sizes) -> int | None:
        """Return how late a job may begin in a run of given sizes."""
        bound = self.lateness_bound_us
        return bound(sizes) if callable(bound) else bound

    def variant(self, name: str | None) -> Variant | None:
        """Return a variant by name; None for the real scheduler.

        Raises
        ------
        UnknownScenario
            If there is no such variant.
        """
        if name is None:
            return None
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise UnknownScenario(f"variant of {self.name}", name, [variant.name for variant in self.variants])

    def sized(self, given: Mapping[str, object]) -> dict[str, int]:
        """Return the default sizes with the given ones in their place, checked."""
        sizes = dict(self.sizes)
        for name, value in given.items():
            if name not in sizes:
                raise UnknownScenario(f"size of {self.name}", name, sizes)
            if type(value) is not int or value < 1:
                raise InvalidExperiment(f"{name}={value!r}: a size is a whole number of at least 1")
            sizes[name] = value
        return sizes

"""Running a scenario: :func:`simulate`, on the model or on PostgreSQL, in virtual time.

Synchronous, and safe to call where an event loop is already running (a notebook).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.worker import Worker
from simlab.checks import Evidence, judge, overall
from simlab.effects import EffectMode
from simlab.errors import InvalidExperiment
from simlab.faults import At, Fault, HandlerOverruns, StoreClockStep, duration_us
from simlab.kernel import checked_decisions
from simlab.pgserver import PostgresServer, throwaway_postgres
from simlab.pgworld import postgres_backend
from simlab.results import HISTORY_FILE, Result, made_folder
from simlab.scenario import Scenario, Variant
from simlab.scenarios import find_scenario
from simlab.workloads import Workload
from simlab.world import OpenBackend, World, model_backend

__all__ = ["STORES", "simulate"]

STORES = ("model", "postgres")
"""The two stores a scenario can run on in virtual time."""

Progress = Callable[[int, int], None]


def simulate(
    scenario: str,
    *,
    seed: int,
    variant: str | None = None,
    faults: Sequence[Fault] | None = None,
    decisions: Sequence[int] | None = None,
    workload: Workload | None = None,
    store: str = "model",
    server: PostgresServer | None = None,
    progress: Progress | None = None,
    keep: str | Path | None = None,
    **sizes: Any,
) -> Result:
    """Run a scenario once, in virtual time.

    Parameters
    ----------
    scenario
        A name that ``simlab list`` shows.
    seed
        Decides everything that is random; the same seed gives the same digest.
    variant
        The name of a famous mistake; None for the real scheduler.
    faults
        A plan in place of the scenario's own; ``()`` for a healthy run.
    decisions
        Orders what is due at the same instant: each number chooses among the events that are next, 0 the one
        scheduled first. By default, and once they are exhausted, the order is that of scheduling.
    workload
        The load, for a scenario whose load is drawn from the seed; by default what the seed says.
    store
        ``"model"`` or ``"postgres"``.
    server
        The PostgreSQL to use; by default a throwaway one is started and stopped.
    progress
        Called with virtual microseconds done and in all.
    keep
        A folder, made if need be. The history is written to it before it is judged, so that a check which breaks
        loses nothing.
    **sizes
        The scenario's sizes, such as ``n_jobs=100``.

    Raises
    ------
    UnknownScenario
        If the scenario, the variant or a size does not exist.
    InvalidExperiment
        If the seed, a size or the plan of faults cannot be used.
    PostgresUnavailable
        If a server was needed and could not be had.
    """
    if type(seed) is not int:
        raise InvalidExperiment(f"seed={seed!r}: a seed is a whole number")
    if store not in STORES:
        raise InvalidExperiment(f"store={store!r}: there are {' and '.join(STORES)}")
    found = find_scenario(scenario)
    chosen = found.variant(variant)
    checked = found.sized(sizes)
    orders = None if decisions is None else checked_decisions(decisions)
    if found.draw is not None and found.told_with is not None:
        # Whatever is not given is what the seed says.
        drawn = found.draw(seed, checked)
        workload = drawn.workload if workload is None else workload
        plan = drawn.faults if faults is None else tuple(faults)
        orders = drawn.decisions if orders is None else orders
        found = found.told_with(found, workload, plan)
    elif workload is not None:
        raise InvalidExperiment(f"{scenario} has a load of its own; only mixed takes a workload")
    else:
        plan = found.faults(checked) if faults is None else tuple(faults)
    run = partial(
        _run,
        scenario=found,
        variant=chosen,
        sizes=checked,
        plan=plan,
        decisions=orders or (),
        workload=workload,
        seed=seed,
        store=store,
        progress=progress,
        keep=None if keep is None else made_folder(keep),
    )
    if store == "model":
        return run(
            partial(model_backend, store_class=chosen.model_store, wrap=chosen.wrap)
            if chosen
            else model_backend
        )
    if server is not None:
        return run(_on(server, chosen))
    with throwaway_postgres() as own:
        return run(_on(own, chosen))


def _on(server: PostgresServer, variant: Variant | None) -> OpenBackend:
    if variant is None:
        return partial(postgres_backend, dsn=server.dsn)
    return partial(
        postgres_backend,
        dsn=server.dsn,
        store_class=variant.postgres_store,
        rewrite=variant.rewrite,
        wrap=variant.wrap,
    )


def _foreign(scenario: Scenario, sizes: dict[str, int], plan: tuple[Fault, ...]) -> list[Fault]:
    """Return the faults of a plan that the scenario's own bounds do not reckon with."""
    if scenario.draw is not None:
        return []  # Told with this plan: its bounds follow from it.
    own = scenario.faults(sizes)
    return [fault for fault in plan if fault not in own]


def _longer_us(scenario: Scenario, foreign: Sequence[Fault]) -> int:
    """Return how much later a job may begin for faults that are not the scenario's own."""
    if not foreign:
        return 0
    settings = scenario.settings
    # A fault may cost a lease, which must first run out and be swept; a handler's overrun keeps its slot; and a
    # database whose clock is set back gives a dead worker that much more.
    again_us = settings.lease_us + settings.sweep_interval_us + settings.poll_interval_us
    longer_us = sum(fault.by_us * fault.attempts for fault in foreign if isinstance(fault, HandlerOverruns))
    back_us = sum(max(0, -fault.by_us) for fault in foreign if isinstance(fault, StoreClockStep))
    return again_us + 4 * settings.request_timeout_us + longer_us + back_us


def _until_us(scenario: Scenario, sizes: dict[str, int], foreign: Sequence[Fault]) -> int:
    """Return how long the story is told: long enough for faults that are not its own to end and be made good."""
    until_us = scenario.until_us(sizes)
    moments = [getattr(fault, "when", None) for fault in foreign]
    late_us = max((when.at_us for when in moments if isinstance(when, At)), default=0)
    # Each may take a job from its worker once more.
    made_good_us = sum(duration_us(fault) + _longer_us(scenario, [fault]) for fault in foreign)
    return max(until_us, late_us) + made_good_us


def _run(
    open_backend: OpenBackend,
    *,
    scenario: Scenario,
    variant: Variant | None,
    sizes: dict[str, int],
    plan: tuple[Fault, ...],
    decisions: tuple[int, ...],
    workload: Workload | None,
    seed: int,
    store: str,
    progress: Progress | None,
    keep: Path | None,
) -> Result:
    world = World(
        seed=seed,
        open_backend=open_backend,
        faults=plan,
        decisions=decisions,
        latency=scenario.latency,
        worker_class=variant.worker_class if variant else Worker,
        effect_mode=variant.effect_mode if variant else EffectMode.IDEMPOTENT,
    )
    foreign = _foreign(scenario, sizes, plan)
    total_us = _until_us(scenario, sizes, foreign)
    began = time.perf_counter()
    # A run makes millions of objects and no garbage to speak of: collecting what was there before it, again
    # and again, would cost more than the run.
    gc.freeze()
    try:
        with world.opened():
            scenario.build(world, sizes, scenario.settings)
            world.run(
                until_us=total_us,
                drain_us=scenario.drain_us,
                progress=None if progress is None else lambda done_us: progress(done_us, total_us),
                settled=scenario.settled,
            )
            table, effects = world.table(), world.effects()
    finally:
        gc.unfreeze()
    wall_s = time.perf_counter() - began
    if keep is not None:
        world.history.save(keep / HISTORY_FILE)
    bound_us = scenario.lateness_us(sizes)
    evidence = Evidence(
        world.history,
        table,
        effects,
        settings=scenario.settings,
        lateness_bound_us=None if bound_us is None else bound_us + _longer_us(scenario, foreign),
    )
    checks = judge(evidence, scenario.checks)
    return Result(
        scenario=scenario.name,
        seed=seed,
        variant=variant.name if variant else None,
        store=store,
        params=sizes,
        faults=plan,
        lease_us=scenario.settings.lease_us,
        checks=tuple(checks),
        verdict=overall(checks),
        history=world.history,
        table=tuple(table),
        effects=tuple(effects),
        virtual_s=world.kernel.now_us / 1e6,
        wall_s=wall_s,
        decisions=decisions,
        workload=workload,
        never_struck=world.injector.never_struck(),
    )

"""The world: wired the same for a seed, stopped in good order, and silent once it is closed."""

import gc
from functools import partial

import pytest

from scheduler.app import App
from scheduler.jobs import JobState
from scheduler.policy import WorkerSettings
from simlab.effects import EffectMode
from simlab.errors import InvalidExperiment
from simlab.faults import At, Crash, Pause, Reached, ReplyLost, RequestLost
from simlab.hosts import EPOCH_US, HostState, Incarnation
from simlab.store import ModelStore
from simlab.world import DatabaseClock, World, model_backend
from tests.simlab.bench import SECOND, Bench, opened_story, working_app

SETTINGS = WorkerSettings(concurrency=2, prefetch=2)


def world_with(app: App | None = None, **fields) -> World:
    world = World(**{"seed": 1, "open_backend": model_backend, **fields})
    served = app if app is not None else working_app()

    def boot(life: Incarnation) -> None:
        world.start_worker(life, served, SETTINGS)

    world.add_host("w1", boot)
    return world


def test_the_database_clock_is_virtual_time_as_a_date():
    bench = Bench()
    clock = DatabaseClock(bench.kernel)
    assert clock.now_us() == EPOCH_US
    bench.until(17)
    assert clock.now_us() == EPOCH_US + 17


def test_a_run_ends_at_its_time_with_the_workers_stopped_and_drained():
    world = world_with()
    with world.opened():
        world.run(until_us=100 * SECOND, drain_us=50 * SECOND)
        assert 100 * SECOND <= world.kernel.now_us <= 150 * SECOND
        assert not world.hosts["w1"].life.tasks
        assert world.table() == []
        assert world.effects() == []


def test_a_plan_for_a_host_that_is_not_there_is_refused_before_the_first_event():
    world = world_with(faults=[Crash(host="w7", when=At(5))])
    with world.opened():
        with pytest.raises(InvalidExperiment, match="no host 'w7'; there are w1"):
            world.run(until_us=100, drain_us=10)
        assert len(world.history) == 0


def test_a_client_draws_identities_from_a_stream_of_its_own():
    def identities(seed: int) -> list[object]:
        world = world_with(seed=seed)
        got: list[object] = []
        app = working_app()

        async def load(life: Incarnation) -> None:
            client = world.client(life, app)
            got.extend([await client.enqueue("work"), await client.enqueue("work")])

        world.add_host("client", lambda life: world.spawn(life, load(life), "client"))
        with world.opened():
            world.run(until_us=20 * SECOND, drain_us=10 * SECOND)
        return got

    assert identities(1) == identities(1)
    assert len(set(identities(1)) | set(identities(2))) == 4


def test_what_breaks_on_a_host_breaks_the_run_with_the_very_same_error():
    world = world_with()
    error = ZeroDivisionError("a mistake in the scenario")

    async def load() -> None:
        raise error

    world.add_host("client", lambda life: world.spawn(life, load(), "client"))
    with world.opened(), pytest.raises(ZeroDivisionError) as told:
        world.run(until_us=10, drain_us=10)
    assert told.value is error


def test_a_coroutine_that_never_began_is_disposed_of_in_silence():
    world = world_with()

    async def never() -> None:
        raise AssertionError("it began")

    with world.opened():
        life = world.hosts["w1"].life
        world.spawn(life, never(), "never")
        world.hosts["w1"].crash()
        world.spawn(life, never(), "too late")
    gc.collect()


@pytest.mark.parametrize("loss", [RequestLost, ReplyLost])
def test_an_effect_crosses_the_network_and_its_messages_can_be_lost(loss):
    app = App()

    def begin(story) -> None:
        @app.task("work")
        async def work(job):
            await story.world.effect(story.world.hosts["w1"].life, job)

    with opened_story(app=app, faults=[loss(host="w1", verb="effect")], begin=begin) as story:
        job = story.enqueue()
        story.to(60)
        assert story.row(job).state is JobState.SUCCEEDED
        assert len(story.world.effects()) == 1
        kinds = [kind for kind in story.kinds(job) if kind in {"effect", "duplicate", "raised"}]
        # The reply lost: it happened, nobody knew, and asking again was refused by the idempotent world.
        assert kinds == (["effect", "raised", "duplicate"] if loss is ReplyLost else ["raised", "effect"])


def test_the_outside_world_checks_what_it_is_told_to():
    for mode, changes in ((EffectMode.IDEMPOTENT, 1), (EffectMode.PLAIN, 2)):
        app = App()
        world = World(
            seed=1, open_backend=model_backend, effect_mode=mode, faults=[ReplyLost(host="w1", verb="effect")]
        )

        async def work(job, world=world):
            await world.effect(world.hosts["w1"].life, job)

        app.task("work")(work)
        world.add_host(
            "w1", lambda life, world=world, app=app: world.start_worker(life, app, SETTINGS) and None
        )

        async def load(life: Incarnation, world=world, app=app) -> None:
            await world.client(life, app).enqueue("work")

        world.add_host("client", lambda life, world=world, load=load: world.spawn(life, load(life), "client"))
        with world.opened():
            world.run(until_us=100 * SECOND, drain_us=10 * SECOND)
            assert len(world.effects()) == changes


def test_a_world_full_of_crashes_and_pauses_closes_without_a_word():
    plan = [
        Crash(host="w1", when=Reached("after_start", 2), restart_after_us=SECOND),
        Crash(host="w1", when=Reached("before_heartbeat", 2), restart_after_us=SECOND),
        Pause(host="w1", when=At(40 * SECOND), for_us=1_000 * SECOND),
    ]
    with opened_story(app=working_app(seconds=5), faults=plan) as story:
        for delay_s in range(30):
            story.enqueue(delay_s=delay_s)
        story.to(50)
        assert story.world.hosts["w1"].state is HostState.PAUSED
        recorded = len(story.world.history)
    gc.collect()
    assert len(story.world.history) == recorded


def test_a_world_is_open_only_inside_its_block():
    world = world_with()
    with pytest.raises(AssertionError, match="the world is not open"):
        world.table()
    with world.opened():
        assert world.table() == []
    with pytest.raises(AssertionError, match="the world is not open"):
        world.table()


def test_a_store_that_a_variant_replaced_is_the_one_that_is_opened():
    class Other(ModelStore):
        pass

    world = world_with(open_backend=partial(model_backend, store_class=Other))
    with world.opened():
        assert type(world.backend.store) is Other

"""The batcher in virtual time: the first item goes out at once, and what gathers meanwhile goes together."""

import itertools
from collections.abc import Sequence

import pytest

from scheduler.batcher import Batcher
from scheduler.errors import StoreUnavailable
from tests.simlab.bench import Bench


class Batching:
    """A batcher whose writes take 100 microseconds; the writes numbered in `away` are not answered."""

    def __init__(self, *, limit: int = 1000, away: Sequence[int] = ()) -> None:
        self.bench = Bench()
        self.batches: list[tuple[int, list[int]]] = []
        self.replies: list[tuple[int, int | None, int]] = []
        self.unavailable: list[str] = []
        self.unwanted: set[int] = set()
        self._away = set(away)
        self._writes = 0
        self.batcher: Batcher[int, int] = Batcher(
            clock=self.bench.clock,
            write=self._write,
            limit=limit,
            retry_us=1000,
            on_unavailable=lambda error: self.unavailable.append(str(error)),
        )
        self.task = self.bench.spawn(self.batcher.run(), "batcher")

    async def _write(self, items: Sequence[int]) -> list[int]:
        self._writes += 1
        number = self._writes
        self.batches.append((self.bench.now_us, list(items)))
        await self.bench.clock.sleep_us(100)
        if number in self._away:
            raise StoreUnavailable(f"write {number}")
        return [-item for item in items]

    def submit(self, item: int, *, at_us: int = 0) -> None:
        async def one() -> None:
            await self.bench.clock.sleep_us(at_us)
            reply = await self.batcher.submit(item, wanted=lambda: item not in self.unwanted)
            self.replies.append((item, reply, self.bench.now_us))

        self.bench.spawn(one())


def test_a_lone_item_is_written_at_once():
    batching = Batching()
    batching.submit(1, at_us=5)
    batching.bench.until(500)
    assert batching.batches == [(5, [1])]
    assert batching.replies == [(1, -1, 105)]


def test_what_gathers_during_a_write_forms_the_next_batch_in_the_order_it_came():
    batching = Batching()
    batching.submit(1)
    for item in range(2, 12):
        batching.submit(item, at_us=item)
    batching.bench.until(500)
    assert batching.batches == [(0, [1]), (100, list(range(2, 12)))]
    assert {at for item, _, at in batching.replies if item > 1} == {200}


def test_each_caller_gets_its_own_reply():
    batching = Batching(limit=7)
    for item in range(100):
        batching.submit(item, at_us=item % 13)
    batching.bench.until(10_000)
    assert len(batching.replies) == 100
    assert all(reply == -item for item, reply, _ in batching.replies)


def test_a_batch_is_no_larger_than_its_limit():
    batching = Batching(limit=3)
    for item in range(10):
        batching.submit(item)
    batching.bench.until(10_000)
    assert [len(batch) for _, batch in batching.batches] == [3, 3, 3, 1]


def test_batches_grow_with_load_and_the_writes_are_one_at_a_time():
    batching = Batching()
    for item in range(1000):
        batching.submit(item, at_us=item)
    batching.bench.until(10_000)
    sizes = [len(batch) for _, batch in batching.batches]
    assert sum(sizes) == 1000
    assert set(sizes[1:-1]) == {100}
    starts = [at for at, _ in batching.batches]
    assert all(later - earlier >= 100 for earlier, later in itertools.pairwise(starts))


def test_an_unanswered_batch_is_written_again_after_a_pause_until_it_is_answered():
    batching = Batching(away=[1, 2])
    batching.submit(1)
    batching.submit(2, at_us=50)
    batching.bench.until(10_000)
    assert batching.batches == [(0, [1]), (1100, [1]), (2200, [1]), (2300, [2])]
    assert batching.unavailable == ["write 1", "write 2"]
    assert batching.replies == [(1, -1, 2300), (2, -2, 2400)]


def test_what_is_no_longer_wanted_is_given_up_when_its_batch_is_tried_again():
    batching = Batching(away=[1])
    batching.submit(1)
    batching.submit(2)
    batching.bench.until(50)
    batching.unwanted.add(1)
    batching.bench.until(10_000)
    assert batching.batches == [(0, [1, 2]), (1100, [2])]
    assert sorted(batching.replies) == [(1, None, 1100), (2, -2, 1200)]


def test_what_is_unwanted_before_its_first_write_is_never_written():
    batching = Batching()
    batching.submit(1)
    batching.submit(2, at_us=10)
    batching.bench.until(50)
    batching.unwanted.add(2)
    batching.bench.until(1000)
    assert batching.batches == [(0, [1])]
    assert batching.replies[-1][:2] == (2, None)


def test_another_error_of_the_write_breaks_the_batcher_and_is_not_tried_again():
    bench = Bench()

    async def write(items: Sequence[int]) -> list[int]:
        raise ValueError("a mistake")

    batcher: Batcher[int, int] = Batcher(
        clock=bench.clock, write=write, limit=1, retry_us=1, on_unavailable=lambda error: None
    )
    task = bench.spawn(batcher.run())

    async def submits() -> None:
        await batcher.submit(1, wanted=lambda: True)

    bench.spawn(submits())
    bench.until(100)
    assert isinstance(task.error(), ValueError)
    bench.bury()


@pytest.mark.parametrize("replies", [[], [1, 2]])
def test_a_write_that_answers_with_too_few_or_too_many_replies_is_an_error(replies):
    bench = Bench()

    async def write(items: Sequence[int]) -> list[int]:
        return replies

    batcher: Batcher[int, int] = Batcher(
        clock=bench.clock, write=write, limit=9, retry_us=1, on_unavailable=lambda error: None
    )
    task = bench.spawn(batcher.run())

    async def submits() -> None:
        await batcher.submit(1, wanted=lambda: True)

    bench.spawn(submits())
    bench.until(100)
    assert isinstance(task.error(), ValueError)
    bench.bury()

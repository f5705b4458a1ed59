"""Random streams: named, seeded, and independent of one another and of the process."""

import os
import subprocess
import sys

from simlab.streams import Streams

GOLDEN = [837598507, 979501313, 294512782, 470500856, 862513311]
"""Seed 7, arrivals."""


def draws(seed: int, name: str, count: int = 5) -> list[int]:
    stream = Streams(seed).stream(name)
    return [stream.randint(0, 10**9) for _ in range(count)]


def test_the_same_seed_and_name_give_the_same_numbers():
    assert draws(7, "arrivals") == draws(7, "arrivals")


def test_another_seed_or_another_name_gives_others():
    assert (
        len({tuple(draws(seed, name)) for seed in (-1, 0, 1, 7) for name in ("arrivals", "service", "")})
        == 12
    )


def test_what_is_drawn_from_one_stream_or_made_before_it_changes_no_other():
    streams = Streams(7)
    before = streams.stream("faults")
    for _ in range(100):
        before.random()
    stream = streams.stream("arrivals")
    assert [stream.randint(0, 10**9) for _ in range(5)] == draws(7, "arrivals")


def test_the_numbers_are_these_on_every_machine_and_in_every_process():
    assert draws(7, "arrivals") == GOLDEN
    code = (
        "from simlab.streams import Streams; s = Streams(7).stream('arrivals');"
        "print([s.randint(0, 10**9) for _ in range(5)])"
    )
    for hash_seed in ("0", "4242"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == str(GOLDEN)

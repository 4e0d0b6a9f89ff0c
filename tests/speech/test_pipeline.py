"""The codec's worker: order, bound, faults, and an end in every case."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pymagpie.metrics import CodecClock
from pymagpie.pipeline import CodecWorker, InlineCodec, arriving, timed


def double(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    return (2.0 * block for block in blocks)


def alive() -> bool:
    return any(thread.name == "pymagpie-codec" for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_results_come_in_order(depth: int) -> None:
    with CodecWorker(double, depth) as worker:
        out = []
        for i in range(20):
            worker.submit(np.array([i]))
            out += worker.finished()
        out += worker.drain(np.array([20]))
        assert [int(x[0]) for x in out] == [2 * i for i in range(21)]
        assert list(worker.drain()) == []
    assert not alive()


def test_depth_0_waits_for_each_block() -> None:
    """The rule for one CPU: when ``submit`` returns, nothing is being decoded."""
    with CodecWorker(double, depth=0) as worker:
        for i in range(5):
            worker.submit(np.array([i]))
            assert [int(x[0]) for x in worker.finished()] == [2 * i]


def test_depth_bounds_what_is_under_way() -> None:
    gate = threading.Semaphore(0)
    begun: list[int] = []

    def decode(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for block in blocks:
            begun.append(int(block[0]))
            gate.acquire()
            yield block

    with CodecWorker(decode, depth=2) as worker:
        worker.submit(np.array([0]))
        worker.submit(np.array([1]))  # two under way: neither call waits
        opener = threading.Timer(0.05, gate.release)
        opener.start()
        worker.submit(np.array([2]))  # returns once the first is done
        opener.join()
        assert begun[0] == 0 and len(begun) <= 2
        gate.release(5)
        assert [int(x[0]) for x in worker.drain()] == [0, 1, 2]
    assert not alive()


@pytest.mark.parametrize("depth", [0, 3])
def test_a_fault_reaches_the_caller_once(depth: int) -> None:
    def fail(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for block in blocks:
            if block[0] == 1:
                raise ArithmeticError("broken")
            yield block

    with pytest.raises(ArithmeticError, match="broken"), CodecWorker(fail, depth) as worker:
        for i in range(10):
            worker.submit(np.array([i]))
            list(worker.finished())
        list(worker.drain())
    assert not alive()


def test_leaving_drops_what_has_not_begun() -> None:
    done: list[int] = []

    def slow(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for block in blocks:
            time.sleep(0.05)
            done.append(int(block[0]))
            yield block

    with pytest.raises(RuntimeError, match="consumer"), CodecWorker(slow, depth=10) as worker:
        for i in range(10):
            worker.submit(np.array([i]))
        raise RuntimeError("consumer")
    assert not alive() and len(done) <= 2


def test_a_block_that_waits_for_the_end_is_not_lost() -> None:
    """A codec that wants two frames at a time gives the odd last one only when there are no more."""

    def pairs(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        held = np.zeros(0, int)
        for block in blocks:
            held = np.concatenate([held, block])
            while len(held) >= 2:
                yield held[:2]
                held = held[2:]
        if len(held):
            yield held

    with CodecWorker(pairs, depth=0) as worker:
        worker.submit(np.array([0, 1]))
        assert [x.tolist() for x in worker.drain(np.array([2]))] == [[0, 1], [2]]


def test_waiting_for_codes_is_not_decoding() -> None:
    def codes() -> Iterator[np.ndarray]:
        for i in range(3):
            time.sleep(0.05)
            yield np.full(10, i)

    clock = CodecClock(100)
    chunks = list(timed(double(arriving(codes(), clock)), clock))
    assert len(chunks) == 3 and clock.samples == 30 and clock.host_copies_per_chunk == 0
    assert clock.busy_s < clock.chunk_ends[2] - clock.chunk_ends[0]


def test_inline_decodes_each_block_as_it_comes_and_the_rest_at_the_end() -> None:
    with InlineCodec(double) as codec:
        for number in range(3):
            codec.submit(np.full(2, number))
            assert [samples.tolist() for samples in codec.finished()] == [[2 * number] * 2]
        assert [samples.tolist() for samples in codec.drain(np.full(1, 7))] == [[14]]
    with InlineCodec(double) as codec:
        assert list(codec.drain()) == []

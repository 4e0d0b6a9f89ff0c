"""Runs the custom ops on numpy arrays, without ggml.

In this process the ops get tensor structs of a layout unlike ggml's. With ``PYMAGPIE_TEST_RUNNER`` set to a command
(``qemu-aarch64 ./runner``), a program built from ``runner.cpp`` runs them instead: the same tests for another CPU.
"""

from __future__ import annotations

import functools
import os
import shlex
import struct
import subprocess

import numpy as np

from pymagpie import native

OPS = ("conv", "upsample", "refresh")
LAYOUT = {"data": 0, "src": 8, "nb": 88, "ne": 120}
STRUCT_WORDS = 19
RUNNER = os.environ.get("PYMAGPIE_TEST_RUNNER", "")


class Struct:
    """A tensor struct over a float32 array (numpy order, at most 4 dimensions, rows contiguous)."""

    def __init__(self, array: np.ndarray) -> None:
        assert array.dtype == np.float32 and array.strides[-1] == 4
        self.array = array
        self.sources: list[Struct] = []
        self.memory = np.zeros(STRUCT_WORDS, np.uint64)
        shape = (1,) * (4 - array.ndim) + array.shape
        strides = (array.nbytes,) * (4 - array.ndim) + array.strides
        self.memory[LAYOUT["ne"] // 8:][:4] = shape[::-1]
        self.memory[LAYOUT["nb"] // 8:][:4] = strides[::-1]
        self.memory[0] = array.ctypes.data

    @property
    def address(self) -> int:
        return self.memory.ctypes.data

    def set_sources(self, arrays: list[np.ndarray | None]) -> None:
        for index, array in enumerate(arrays):
            if array is not None:
                self.sources.append(Struct(array))
                self.memory[LAYOUT["src"] // 8 + index] = self.sources[-1].address


class Runner:
    """The other process and what it can do."""

    def __init__(self, command: str) -> None:
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        mask, *lanes = struct.unpack("5i", self.read(20))
        self.lanes = {name: lanes[bit] for bit, name in enumerate(native.INSTRUCTION_SETS) if mask >> bit & 1}

    def read(self, size: int) -> bytes:
        data = self.process.stdout.read(size)
        assert len(data) == size, f"the runner ended with status {self.process.wait()}"
        return data

    def run(self, op, dst, sources, threads, isa, in_channels, taps, dilation, raw, activations, scale):
        tensors = [dst, *sources]
        message = [struct.pack("8ifi", OPS.index(op), threads, native.INSTRUCTION_SETS.index(isa), in_channels, taps,
                               dilation, raw, activations, scale, len(tensors))]
        for index, array in enumerate(tensors):
            if array is None or (index and array is dst):
                message.append(struct.pack("4q", 0 if array is None else -1, 0, 0, 0))
            else:
                message.append(struct.pack("4q", *((1,) * (4 - array.ndim) + array.shape)[::-1]) + array.tobytes())
        self.process.stdin.write(b"".join(message))
        self.process.stdin.flush()
        dst[...] = np.frombuffer(self.read(dst.nbytes), np.float32).reshape(dst.shape)


@functools.cache
def runner() -> Runner:
    return Runner(RUNNER)


@functools.cache
def lanes() -> dict[str, int]:
    """The vector width of each instruction set that can be tested, by name; empty without library and runner."""
    if RUNNER:
        return runner().lanes
    library = native.load()
    return {} if library is None else {name: native.kernels(name)[1] for name in native.instruction_sets()}


def run(op: str, dst: np.ndarray, sources: list[np.ndarray | None], threads: int = 1, isa: str = "plain",
        in_channels: int = 1, taps: int = 1, dilation: int = 1, raw: int = 1, activations: int = 0,
        scale: float = 1.0) -> None:
    """``pymagpie_<op>`` on *threads* threads, the last thread first: their order must not matter."""
    if RUNNER:
        runner().run(op, dst, sources, threads, isa, in_channels, taps, dilation, raw, activations, scale)
        return
    library, ffi = native.load(), native.ffi()
    tensor = Struct(dst)
    tensor.set_sources(sources)
    params = ffi.new("pymagpie_op_params *", {
        "kernels": native.kernels(isa)[0], "layout": LAYOUT, "in_channels": in_channels, "taps": taps,
        "dilation": dilation, "raw": raw, "activations": activations, "scale": scale})
    for thread in reversed(range(threads)):
        getattr(library, f"pymagpie_{op}")(ffi.cast("void *", tensor.address), thread, threads, params)

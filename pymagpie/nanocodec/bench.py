"""Measures the codec: chunks of several sizes, several formulations taking turns in one run.

A machine's speed drifts with its load and temperature, so within a round every formulation decodes one chunk, beside a
plain float32 matrix product that says what the machine could do at that time; medians are taken over the rounds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from ..metrics import rtfx
from .config import CodecConfig
from .model import NanoCodec
from .native_layers import NativeDecoder
from .stream import StreamState, decode_stream, init_stream_graph

MIN_ROUNDS = 3
_SETTLE = 0.1  # seconds for which a BLAS keeps its threads spinning after a product, and somewhat more

_PRODUCT = """
import sys
from time import perf_counter
import numpy as np
n = 1024
a = np.random.default_rng(0).standard_normal((n, n), np.float32)
b, c = a.T.copy(), np.empty_like(a)
np.matmul(a, b, out=c)
for _ in sys.stdin:
    best = 1e9
    for _ in range(4):
        start = perf_counter()
        np.matmul(a, b, out=c)
        best = min(best, perf_counter() - start)
    print(2 * n**3 / best / 1e9, flush=True)
"""


class MatrixProduct:
    """numpy's float32 product of two 1024 x 1024 matrices, in a process of its own.

    There its library gets as many threads as the codec, and no setting that fits another CPU.
    """

    def __init__(self, threads: int) -> None:
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
        limits = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
        environment |= dict.fromkeys(limits, str(threads))
        self._process = subprocess.Popen([sys.executable, "-c", _PRODUCT], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, env=environment)

    def gflops(self) -> float:
        """The best of a few products now, in GFLOP/s."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        rate = float(self._process.stdout.readline())
        sleep(_SETTLE)
        return rate

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> MatrixProduct:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def flop_per_frame(config: CodecConfig) -> int:
    """Floating-point operations (two a multiply-add) that one frame's convolutions need, upsamplers in compact form."""
    rows, total = 1, 2 * config.pre.kernel * config.pre.in_channels * config.pre.out_channels
    for stage in config.stages():
        rows *= stage.rate
        total += rows * 4 * stage.in_channels
        for block in (block for stack in stage.stacks for block in stack):
            total += sum(rows * 2 * conv.kernel * conv.in_channels * conv.out_channels
                         for conv in (block.input_conv, block.skip_conv))
    return total + rows * 2 * config.post.kernel * config.post.in_channels


def bench_codec(path: str | Path, *, device: str = "auto", threads: int | None = None,
                chunks: Sequence[int] = (1, 4, 16, 64), kernels: Sequence[str] = ("auto", "stock"),
                torch: bool = False, seconds: float = 10.0) -> dict[str, Any]:
    """Decode chunks of *chunks* frames with each of *kernels* in turn (a formulation once), for *seconds* a size.

    *torch* adds PyTorch's convolutions on the same weights (CPU, no streaming state). Returns what ``pymagpie bench
    codec --json`` prints: per chunk size the medians in milliseconds, RTFx, GFLOP/s and the share of the matrix
    product's rate measured beside them (on the CPU). Raises as :meth:`NanoCodec.load` does.
    """
    codecs: list[NanoCodec] = []
    try:
        for name in kernels:
            codec = NanoCodec.load(path, device, threads, name)
            if codec.kernels in [other.kernels for other in codecs]:
                codec.close()
            else:
                codecs.append(codec)
        first = codecs[0]
        on_cpu = first.backend.device.is_cpu
        report: dict[str, Any] = {
            "device": first.device, "threads": first.backend.threads if on_cpu else None,
            "instruction_set": next((codec.decoder.instruction_set for codec in codecs
                                     if isinstance(codec.decoder, NativeDecoder)), None),
            "gflop_per_frame": flop_per_frame(first.config) / 1e9, "frame_rate": first.frame_rate, "chunks": []}
        with MatrixProduct(first.backend.threads) as product:
            for frames in chunks:
                report["chunks"].append(_bench_chunk(path, codecs, frames, torch, seconds, product if on_cpu else None))
        return report
    finally:
        for codec in codecs:
            codec.close()


def _bench_chunk(path: str | Path, codecs: list[NanoCodec], frames: int, torch: bool, seconds: float,
                 product: MatrixProduct | None) -> dict[str, Any]:
    config = codecs[0].config
    codes = np.random.default_rng(0).integers(0, config.codebook_size, (frames, config.num_codebooks))
    runs: dict[str, Callable[[], object]] = {}
    owners: list[Any] = []
    for codec in codecs:
        state = StreamState(codec)
        graph = init_stream_graph(state, frames)
        owners += [graph, state]
        runs[codec.kernels] = lambda state=state, graph=graph: decode_stream(state, graph, codes)  # type: ignore[misc]
    if torch:
        from .torch_decoder import TorchDecoder

        runs["torch"] = TorchDecoder(path, codecs[0].backend.threads).runner(codes)
    times: dict[str, list[float]] = {name: [] for name in runs}
    rates: list[float] = []
    try:
        for run in runs.values():
            run()
        end = perf_counter() + seconds
        while len(rates) < MIN_ROUNDS or perf_counter() < end:
            for name, run in runs.items():
                start = perf_counter()
                run()
                times[name].append(perf_counter() - start)
            rates.append(product.gflops() if product else 0.0)
    finally:
        for owner in owners:
            owner.close()
    audio_s = frames / codecs[0].frame_rate
    gflop, rate = flop_per_frame(config) * frames / 1e9, statistics.median(rates)
    results = {}
    for name, values in times.items():
        median = statistics.median(values)
        results[name] = {"ms": median * 1e3, "rtfx": rtfx(audio_s, median), "gflops": gflop / median,
                         "share_of_matmul": gflop / median / rate if product else None}
    return {"frames": frames, "rounds": len(rates), "matmul_gflops": rate if product else None, "kernels": results}


def format_report(report: dict[str, Any]) -> str:
    """The report as a table for people."""
    where = report["device"] + (f", {report['threads']} threads" if report["threads"] else "")
    isa = f", native kernels: {report['instruction_set']}" if report["instruction_set"] else ""
    lines = [f"{where}{isa}; {report['gflop_per_frame']:.2f} GFLOP a frame, {report['frame_rate']:.2f} frames a second",
             f"{'frames':>6}  {'kernels':<8}{'ms':>10}{'RTFx':>8}{'GFLOP/s':>9}{'of matmul':>11}"]
    for chunk in report["chunks"]:
        for name, result in chunk["kernels"].items():
            share = result["share_of_matmul"]
            lines.append(f"{chunk['frames']:>6}  {name:<8}{result['ms']:>10.1f}{result['rtfx']:>8.2f}"
                         f"{result['gflops']:>9.1f}" + (f"{share:>10.0%} " if share is not None else ""))
        if chunk["matmul_gflops"]:
            lines.append(f"{'':>6}  {'matmul':<8}{'':>18}{chunk['matmul_gflops']:>9.1f}")
    return "\n".join(lines)

"""Measures the acoustic model: time to the first frame, and what a step costs, by weight type and sampling.

Every run is forced to be long by forbidding EOS, so that all runs do the same work. Medians are given, because other
work on the machine shows in single steps; the rate at which memory can be copied is measured beside them, since a step
reads every weight of decoder and local transformer.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..ggml import Tensor, ggml_version
from ..metrics import percentile
from .model import AcousticModel

OUTTYPES = ("q8_0", "f16")
MAX_STEPS = 500
TEXT_TOKENS = 60
EARLY = 50
LATE = 500
_AROUND = 25  # steps on each side that the medians at EARLY and LATE take in
_SETTLE = 3  # first steps of a run, in which graphs are made


def bench_acoustic(model: str | Path | None = None, *, device: str = "auto", threads: int | None = None,
                   seconds: float = 10.0, size: str = "v2602", outtypes: Sequence[str] = OUTTYPES) -> dict[str, Any]:
    """Measure a model file, or without one random models of *size* in each of *outtypes*.

    *seconds* is about how long each run of steps may take; a run ends earlier at 500 steps. Times are in milliseconds.
    """
    with _models(model, size, outtypes) as paths:
        results = [_bench_model(path, device, threads, seconds) for path in paths]
    return {"model": str(model) if model is not None else f"random weights, {size}", "ggml": ggml_version(),
            "copy_gb_s": round(copy_rate(), 2), "text_tokens": TEXT_TOKENS, "models": results}


def copy_rate(size: int = 128 << 20, rounds: int = 5) -> float:
    """Gigabytes a second that one thread copies, reads and writes counted once each; the best of some rounds."""
    source = np.ones(size, np.uint8)
    target = np.empty_like(source)
    best = 0.0
    for _ in range(rounds):
        started = perf_counter()
        np.copyto(target, source)
        best = max(best, 2 * size / (perf_counter() - started) / 1e9)
    return best


@contextmanager
def _models(model: str | Path | None, size: str, outtypes: Sequence[str]) -> Iterator[list[Path]]:
    if model is not None:
        yield [Path(model)]
        return
    from ..synthetic import write_magpie
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{size}.{outtype}.gguf" for outtype in outtypes]
        for path, outtype in zip(paths, outtypes, strict=True):
            write_magpie(path, size=size, outtype=outtype)  # type: ignore[arg-type]
        yield paths


def _bench_model(path: Path, device: str, threads: int | None, seconds: float) -> dict[str, Any]:
    started = perf_counter()
    with AcousticModel.load(path, device=device, threads=threads) as model:
        load_ms = (perf_counter() - started) * 1e3
        cold = _first_frame(model)
        warm = [_first_frame(model) for _ in range(3)]
        report: dict[str, Any] = {
            "type": model.weights.matrix_type, "device": model.device, "threads": model.threads,
            "frames_per_step": model.frames_per_step, "load_ms": round(load_ms, 1),
            "memory_bytes": model.nbytes, "resident_bytes": _resident_bytes(),
            "step_weight_bytes": step_weight_bytes(model),
            "cold": cold, "warm": {key: percentile([run[key] for run in warm], 50) for key in cold},
            "greedy": _run(model, seconds, temperature=0.0),
            "top_k": _run(model, seconds, seed=1, temperature=0.6, top_k=80)}
        for mode in ("greedy", "top_k"):
            report[mode]["weights_gb_s"] = round(report["step_weight_bytes"] / report[mode]["compute_ms"] / 1e6, 2)
    return report


def _text(model: AcousticModel) -> list[int]:
    length = min(TEXT_TOKENS, model.config.max_text)
    return [*(1 + i % (model.text_vocab_size - 3) for i in range(length - 1)), model.text_eos]


def _first_frame(model: AcousticModel) -> dict[str, float]:
    """Text encoder, first step (with the pre-fill) and the whole way to the first frame."""
    started = perf_counter()
    with model.generate(_text(model), temperature=0.0, max_steps=2, min_frames=1 << 20) as generation:
        next(generation)
        first = (perf_counter() - started) * 1e3
    result = generation.result
    return {"first_frame_ms": round(first, 2), "encoder_ms": round(result.encoder_ms[0], 2),
            "prefill_ms": round(result.step_ms[0], 2)}


def _run(model: AcousticModel, seconds: float, **options: Any) -> dict[str, Any]:
    steps = min(MAX_STEPS, model.config.max_steps)
    with model.generate(_text(model), max_steps=steps, min_frames=1 << 20, **options) as generation:
        started = perf_counter()
        for _ in generation:
            if perf_counter() - started > seconds:
                break
    step_ms, compute_ms = generation.result.step_ms, generation.result.compute_ms
    kept = step_ms[_SETTLE:] or step_ms
    inside = compute_ms[_SETTLE:] or compute_ms
    host = [step - compute for step, compute in zip(kept, inside, strict=True)]
    median = percentile(kept, 50)
    report = {"steps": len(step_ms), "step_ms": round(median, 3), "step_p95_ms": round(percentile(kept, 95), 3),
              "frame_ms": round(median / model.frames_per_step, 3), "compute_ms": round(percentile(inside, 50), 3),
              "host_ms": round(percentile(host, 50), 3)}
    for name, frame in (("at_50", EARLY), ("at_500", LATE)):
        step = frame // model.frames_per_step
        around = step_ms[max(_SETTLE, step - _AROUND):step + _AROUND]
        if len(step_ms) >= step - _AROUND // 5 and around:
            report[f"step_ms_{name}_frames"] = round(percentile(around, 50), 3)
    return report


def step_weight_bytes(model: AcousticModel) -> int:
    """Bytes of the matrices that every decoder step reads: decoder, output heads, and the local transformer once a
    slot."""
    weights, slots = model.weights, model.config.slots

    def size(tensors: Sequence[Tensor | None]) -> int:
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    total = size([weights.final_proj, *weights.local_out]) + slots * size([weights.local_in])
    for layer in weights.decoder_layers:
        total += size([layer.qkv, layer.self_out, *layer.ffn_in, *layer.ffn_out, layer.cross_q, layer.cross_out])
    for layer in weights.local_layers:
        total += slots * size([layer.qkv, layer.self_out, *layer.ffn_in, *layer.ffn_out])
    return total


def _resident_bytes() -> int | None:
    """The most memory that this process has held; None where the platform does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def format_report(report: dict[str, Any]) -> str:
    """The report of :func:`bench_acoustic` for people."""
    lines = [f"model: {report['model']}; ggml {report['ggml']}; one thread copies {report['copy_gb_s']} GB/s"]
    for model in report["models"]:
        lines.append(f"{model['type']} on {model['device']}, {model['threads']} threads: loaded in "
                     f"{model['load_ms']:.0f} ms, {model['memory_bytes'] / 1e6:.0f} MB on the device")
        for state in ("cold", "warm"):
            times = model[state]
            lines.append(f"  {state:6} first frame {times['first_frame_ms']:8.1f} ms  (encoder "
                         f"{times['encoder_ms']:.1f}, pre-fill {times['prefill_ms']:.1f})")
        for mode in ("greedy", "top_k"):
            run = model[mode]
            ends = ", ".join(f"{run[f'step_ms_at_{n}_frames']:.2f} at {n} frames" for n in (50, 500)
                             if f"step_ms_at_{n}_frames" in run)
            lines.append(f"  {mode:6} {run['frame_ms']:.2f} ms a frame; step {run['step_ms']:.2f} (p95 "
                         f"{run['step_p95_ms']:.2f}) = compute {run['compute_ms']:.2f} + host {run['host_ms']:.2f}"
                         f"{'; ' + ends if ends else ''}; weights at {run['weights_gb_s']} GB/s")
    return "\n".join(lines)

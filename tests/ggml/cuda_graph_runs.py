"""Runs a codec stream of two alternating chunk sizes and an acoustic model on CUDA, and prints what ggml's log said of
its CUDA graphs: ``cuda_graph_runs.py CODEC.gguf MODEL.gguf``.

A process of its own, because ``GGML_CUDA_DISABLE_GRAPHS`` counts from its start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys

import numpy as np

from pymagpie import NanoCodec
from pymagpie.magpie import AcousticModel
from pymagpie.nanocodec import StreamState, decode_stream, init_stream_graph

ROUNDS = 50
RUNS = 20
SIZES = (2, 5)
TEXT = [12, 40, 7, 55, 301, 19, 88, 23, 9, 71, 33, 584]


class GraphLog(logging.Handler):
    """Collects what ggml says about capturing."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logger = logging.getLogger("pymagpie.ggml")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "CUDA graph" in record.getMessage():
            self.lines.append(record.getMessage())

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def sha256(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def run_codec(path: str, log: GraphLog) -> dict[str, object]:
    with NanoCodec.load(path, "cuda") as codec, StreamState(codec) as state:
        rng = np.random.default_rng(0)
        codes = rng.integers(0, codec.codebook_size, (ROUNDS * sum(SIZES), codec.num_codebooks))
        graphs = {size: init_stream_graph(state, size) for size in SIZES}
        log_of_warm_up, hashes = log.take(), []
        for _ in range(RUNS):
            state.reset()
            pieces, start = [], 0
            for _ in range(ROUNDS):
                for size in SIZES:
                    pieces.append(decode_stream(state, graphs[size], codes[start:start + size]))
                    start += size
            hashes.append(sha256(*pieces))
        return {"warm_up": log_of_warm_up, "steady": log.take(), "hashes": hashes}


def run_acoustic(path: str, log: GraphLog) -> dict[str, object]:
    with AcousticModel.load(path, "cuda") as model:
        def run() -> str:
            return sha256(*(np.stack(list(model.generate(TEXT, max_steps=12, min_frames=100, **options)))
                            for options in ({"temperature": 0}, {"seed": 5})))

        hashes = [run() for _ in range(3)]  # the graphs that run once a text are captured in the third
        log_of_warm_up = log.take()
        hashes += [run() for _ in range(RUNS - len(hashes))]
        return {"warm_up": log_of_warm_up, "steady": log.take(), "hashes": hashes}


if __name__ == "__main__":
    graph_log = GraphLog()
    print(json.dumps({"codec": run_codec(sys.argv[1], graph_log), "acoustic": run_acoustic(sys.argv[2], graph_log)}))

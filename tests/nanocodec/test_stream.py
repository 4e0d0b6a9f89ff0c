"""Streaming: the same samples whatever the chunks, and guards around who may run what."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from codec_models import copy_gguf

from pymagpie import NanoCodec
from pymagpie.errors import NonFiniteError, StreamOwnershipError
from pymagpie.nanocodec import OFFLINE_FRAMES, StreamState, decode_stream, init_stream_graph

GPU_TOLERANCE = 2e-4  # a GPU's matrix product may depend on its size
GPU_F16_TOLERANCE = 4e-3  # short chunks of f16 kernels round their activations to f16 on a GPU
BATCHED_TOLERANCE = 2e-5  # short chunks sum in another order than long ones


def assert_same(codec: NanoCodec, actual: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit on the CPU, but for the formulation that changes with the chunk size."""
    if codec.device != "CPU" and codec.path.name.endswith(".f16.gguf"):
        assert np.abs(actual - expected).max() <= GPU_F16_TOLERANCE
    elif codec.device != "CPU":
        assert np.abs(actual - expected).max() <= GPU_TOLERANCE
    elif codec.kernels == "batched":
        assert np.abs(actual - expected).max() <= BATCHED_TOLERANCE
    else:
        assert np.array_equal(actual, expected)


def random_codes(codec: NanoCodec, frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, codec.codebook_size, (frames, codec.num_codebooks))


@pytest.mark.parametrize("outtype", ["f32", "f16"])
def test_any_chunking_gives_the_offline_samples(codec_path: Callable[[str], Path], codes: np.ndarray, device: str,
                                                kernels: str, outtype: str) -> None:
    with NanoCodec.load(codec_path(outtype), device, threads=2, kernels=kernels) as codec:
        offline = codec.decode(codes)
        for chunk in (1, 2, 3, 4, 7, 16, 37, 50):
            assert_same(codec, np.concatenate(list(codec.stream(codes, chunk))), offline)
        assert_same(codec, np.concatenate(list(codec.stream(codes, 16, first_chunk_frames=1))), offline)
        for sizes in ((1, 4, 16, 3, 7, 6), (16, 1, 1, 2, 16, 1), (5, 32)):
            with StreamState(codec) as state:
                graphs = {size: init_stream_graph(state, size) for size in set(sizes)}
                pieces, start = [], 0
                for size in sizes:
                    pieces.append(decode_stream(state, graphs[size], codes[start:start + size]))
                    start += size
                assert start == len(codes)
                assert_same(codec, np.concatenate(pieces), offline)


def test_an_iterator_of_frames_streams_as_they_come(codec: NanoCodec, codes: np.ndarray) -> None:
    taken = []

    def frames():
        for index, frame in enumerate(codes):
            taken.append(index)
            yield frame

    stream = codec.stream(frames(), chunk_frames=4)
    first = next(stream)
    assert len(first) == 4 * codec.samples_per_frame and len(taken) == 4
    rest = list(stream)
    assert [len(chunk) // codec.samples_per_frame for chunk in rest] == [4] * 8 + [1]
    whole = codec.decode(codes)
    assert_same(codec, np.concatenate([first, *rest]), whole)


def test_long_input_decodes_in_bounded_chunks(tiny: NanoCodec) -> None:
    codes = random_codes(tiny, 2 * OFFLINE_FRAMES + 5)
    audio = tiny.decode(codes)
    assert audio.shape == (len(codes) * tiny.samples_per_frame,)
    assert np.array_equal(audio, np.concatenate(list(tiny.stream(codes, 7))))


def test_no_frames_are_no_samples(tiny: NanoCodec) -> None:
    assert tiny.decode(np.empty((0, 2), np.int32)).shape == (0,)
    assert list(tiny.stream(iter([]))) == []


def test_threads_and_repetition_change_no_byte(codec_path: Callable[[str], Path], codes: np.ndarray, kernels: str,
                                               device: str) -> None:
    runs = []
    for threads in (1, 2, 2, 3):
        with NanoCodec.load(codec_path("f32"), device, threads, kernels) as codec:
            runs += [codec.decode(codes).tobytes(), b"".join(c.tobytes() for c in codec.stream(codes, 4))]
    assert len({*runs[::2]}) == 1 and len({*runs[1::2]}) == 1


def test_interleaved_streams_equal_streams_alone(codec: NanoCodec, codes: np.ndarray) -> None:
    one, two = codes, codes[::-1].copy()
    alone = [np.concatenate(list(codec.stream(each, 4))) for each in (one, two)]
    streams = [codec.stream(one, 4), codec.stream(two, 4)]
    pieces: list[list[np.ndarray]] = [[], []]
    for _ in range(10):
        for stream, collected in zip(streams, pieces, strict=True):
            collected.append(next(stream))
    assert all(np.array_equal(np.concatenate(collected), whole)
               for collected, whole in zip(pieces, alone, strict=True))


def test_a_reset_state_is_a_fresh_one(codec: NanoCodec, codes: np.ndarray) -> None:
    codes = codes[:8]
    with StreamState(codec) as state:
        graph = init_stream_graph(state, 8)
        first = decode_stream(state, graph, codes)
        second = decode_stream(state, graph, codes)
        assert not np.array_equal(first, second)  # the caches do carry the past
        state.reset()
        assert np.array_equal(decode_stream(state, graph, codes), first)


def test_building_a_graph_in_mid_stream_leaves_the_caches_alone(codec: NanoCodec, codes: np.ndarray) -> None:
    codes = codes[:8]
    with StreamState(codec) as state:
        start = decode_stream(state, init_stream_graph(state, 3), codes[:3])
        end = decode_stream(state, init_stream_graph(state, 5), codes[3:])
    assert_same(codec, np.concatenate([start, end]), codec.decode(codes))


def test_a_chunk_costs_two_host_copies(codec: NanoCodec, codes: np.ndarray, software: bool,
                                       host_copies: dict[str, int]) -> None:
    assert len(codec.config.cache_plan()) == (20 if software else 97)
    with StreamState(codec) as state:
        graph = init_stream_graph(state, 4)
        host_copies.update(set=0, get=0)
        for start in range(0, 12, 4):
            decode_stream(state, graph, codes[start:start + 4])
    assert host_copies == {"set": 3, "get": 3}


class TestOwnership:
    """A graph runs for the state, the generation and the codec that it was built for, or not at all."""

    @pytest.fixture
    def parts(self, tiny: NanoCodec):
        with StreamState(tiny) as state:
            yield SimpleNamespace(codec=tiny, state=state, graph=init_stream_graph(state, 2),
                                  codes=random_codes(tiny, 2))

    def test_another_state(self, parts) -> None:
        with StreamState(parts.codec) as other, pytest.raises(StreamOwnershipError, match="another stream state"):
            decode_stream(other, parts.graph, parts.codes)

    def test_a_reallocated_state(self, parts) -> None:
        before = decode_stream(parts.state, parts.graph, parts.codes)
        parts.state.reallocate()
        with pytest.raises(StreamOwnershipError, match="generation 1"):
            decode_stream(parts.state, parts.graph, parts.codes)
        fresh = init_stream_graph(parts.state, 2)
        assert np.array_equal(decode_stream(parts.state, fresh, parts.codes), before)

    def test_a_closed_state(self, parts) -> None:
        parts.state.close()
        with pytest.raises(StreamOwnershipError, match="closed"):
            decode_stream(parts.state, parts.graph, parts.codes)
        with pytest.raises(ValueError, match="closed"):
            init_stream_graph(parts.state, 2)
        with pytest.raises(ValueError, match="closed"):
            parts.state.reset()

    def test_a_closed_graph(self, parts) -> None:
        parts.graph.close()
        assert parts.graph.state is None
        with pytest.raises(ValueError, match="closed"):
            decode_stream(parts.state, parts.graph, parts.codes)

    def test_a_closed_codec(self, parts) -> None:
        parts.codec.close()
        with pytest.raises(ValueError, match="closed"):
            decode_stream(parts.state, parts.graph, parts.codes)
        with pytest.raises(ValueError, match="closed"):
            parts.codec.decode(parts.codes)

    def test_a_codec_closed_in_mid_stream(self, tiny: NanoCodec) -> None:
        stream = tiny.stream(random_codes(tiny, 8), 2)
        next(stream)
        tiny.close()
        with pytest.raises(ValueError, match="closed"):
            next(stream)

    def test_another_number_of_frames(self, parts) -> None:
        with pytest.raises(ValueError, match="the graph decodes 2 frames"):
            decode_stream(parts.state, parts.graph, parts.codes[:1])


def test_dropping_objects_in_any_order_does_not_crash(tiny_path: Path) -> None:
    script = textwrap.dedent("""
        import gc, itertools, sys
        import numpy as np
        from pymagpie import NanoCodec
        from pymagpie.nanocodec import StreamState, decode_stream, init_stream_graph
        names = ("codec", "state", "graph", "stream")
        for how in ("drop", "close"):
            for order in itertools.permutations(names):
                held = {"codec": NanoCodec.load(sys.argv[1], "cpu", 1)}
                codes = np.zeros((4, 2), np.int32)
                held["state"] = StreamState(held["codec"])
                held["graph"] = init_stream_graph(held["state"], 4)
                held["stream"] = held["codec"].stream(codes, 2)
                next(held["stream"])
                decode_stream(held["state"], held["graph"], codes)
                for name in order:
                    if how == "close":
                        held[name].close()
                    del held[name]
                    gc.collect()
        codec = NanoCodec.load(sys.argv[1], "cpu", 1)  # left to the interpreter's shutdown
        state = StreamState(codec)
        graph = init_stream_graph(state, 4)
        print("done")
        """)
    done = subprocess.run([sys.executable, "-c", script, str(tiny_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_an_error_and_not_a_full_scale_sample(tiny_path: Path, tmp_path: Path, kernels: str, device: str,
                                                     value: float) -> None:
    from pymagpie.ggml import GGUFFile

    with GGUFFile.open(tiny_path) as file:
        kernel = file.read("dec.res.1.0.0.sc.w").copy()
    kernel[0, 0, 0] = value
    path = copy_gguf(tiny_path, tmp_path / "nan.gguf", replace={"dec.res.1.0.0.sc.w": kernel})
    with NanoCodec.load(path, device, threads=1, kernels=kernels) as codec:
        codes = random_codes(codec, 4)
        with pytest.raises(NonFiniteError, match="NaN or infinity"):
            codec.decode(codes)
        with StreamState(codec) as state:
            graph = init_stream_graph(state, 4)
            for message in ("produced NaN", "an earlier chunk"):
                with pytest.raises(NonFiniteError, match=message):
                    decode_stream(state, graph, codes)
            state.reset()
            assert not state.poisoned


def test_infinite_latents_do_not_outlive_a_reset(tiny: NanoCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_codes(tiny, 4)
    with StreamState(tiny) as state:
        graph = init_stream_graph(state, 4)
        fresh = decode_stream(state, graph, codes)
        from pymagpie.nanocodec import stream
        with monkeypatch.context() as patch:
            patch.setattr(stream, "dequantize", lambda codes, levels: np.full((4, 4), np.nan, np.float32))
            with pytest.raises(NonFiniteError):
                decode_stream(state, graph, codes)
        state.reset()
        assert np.array_equal(decode_stream(state, graph, codes), fresh)


@pytest.mark.parametrize(("codes", "message"), [
    (np.zeros((2, 3), np.int32), r"shape \(frames, 2\)"),
    (np.zeros(2, np.int32), r"shape \(frames, 2\)"),
    (np.zeros((2, 2)), "integers"),
    (np.array([[0, 0], [0, 12]]), "code 12 in frame 1, codebook 1 is out of range; codes run from 0 to 11"),
    (np.array([[-1, 0]]), "code -1 in frame 0"),
    (np.array([[2**40, 0]]), "out of range")])
def test_wrong_codes_are_named(tiny: NanoCodec, codes: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.decode(codes)
    with pytest.raises(ValueError, match=message):
        list(tiny.stream(codes))


@pytest.mark.parametrize("frames", [0, -1, 1.5, "4", True, 5000, None])
def test_wrong_chunk_sizes_are_named(tiny: NanoCodec, frames: object) -> None:
    with pytest.raises(ValueError, match="chunk_frames must be a whole number from 1 to 4096"):
        tiny.stream(random_codes(tiny, 1), frames)


def test_wrong_arguments_are_named(tiny_path: Path) -> None:
    with pytest.raises(ValueError, match="threads must be a whole number from 1 to 512"):
        NanoCodec.load(tiny_path, "cpu", threads=-1)
    with pytest.raises(ValueError, match="unknown kernels"):
        NanoCodec.load(tiny_path, "cpu", kernels="fast")
    with pytest.raises(ValueError, match="unknown device"):
        NanoCodec.load(tiny_path, "abacus")

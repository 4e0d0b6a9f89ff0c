"""``Magpie``: the same samples as its parts make alone, whatever the chunks, the threads and the history."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pymagpie import Audio, AudioChunk, Magpie
from pymagpie.audio import pcm16
from pymagpie.errors import MagpieError, ModelError, ModelNotFoundError
from pymagpie.speech_stream import Progress

TEXT = "Hello world, my quick yellow dog jumped."
GREEDY = {"temperature": 0.0, "seed": 0}
SAMPLED = {"temperature": 0.7, "seed": 7}


def join(chunks: list[AudioChunk]) -> np.ndarray:
    return np.concatenate([chunk.samples for chunk in chunks])


def codes_of(tts: Magpie, text: str, **options: object) -> np.ndarray:
    """The acoustic model's frames, pauses included, int32 (frames, codebooks)."""
    ids = [piece.ids for piece in tts.tokenizer.pieces(text, "en")]
    return np.stack([frame.codes for frame in tts.acoustic.generate_pieces(ids, **options)])


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("sizes", [(4, 4), (1, 1), (3, 7), (256, 256)])
def test_stream_equals_the_codes_decoded_offline(tts: Magpie, options: dict, sizes: tuple[int, int]) -> None:
    offline = tts.codec.decode(codes_of(tts, TEXT, **options))
    chunks = list(tts.stream(TEXT, first_chunk_frames=sizes[0], chunk_frames=sizes[1], **options))
    assert np.array_equal(join(chunks), offline)
    audio = tts.synthesize(TEXT, **options)
    assert np.array_equal(audio.samples, offline) and audio.samples.dtype == np.float32


def test_saved_file_is_within_one_step_of_the_samples(tts: Magpie, tmp_path: Path) -> None:
    audio = tts.synthesize(TEXT, **GREEDY)
    audio.save(tmp_path / "a.wav")
    read, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert rate == audio.sample_rate == tts.sample_rate == 22050
    assert np.array_equal(read, pcm16(audio.samples))


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_ten_runs_are_identical(tts: Magpie, options: dict) -> None:
    runs = {tts.synthesize(TEXT, **options).samples.tobytes() for _ in range(10)}
    assert len(runs) == 1


def test_greedy_speech_needs_no_seed_to_be_repeatable(synthetic: Magpie) -> None:
    long = "She sings the song. " * 12  # with pauses between sentences, whose lengths depend on the seed
    runs = [synthetic.synthesize(long, temperature=0, max_steps=4) for _ in range(2)]
    assert np.array_equal(runs[0].samples, runs[1].samples) and len(runs[0].samples) > 0


def test_seed_is_reported_and_repeats_the_run(tts: Magpie) -> None:
    first = tts.synthesize(TEXT, temperature=1.0)
    assert first.seed is not None
    again = tts.synthesize(TEXT, temperature=1.0, seed=first.seed)
    other = tts.synthesize(TEXT, temperature=1.0, seed=first.seed + 1)
    assert np.array_equal(first.samples, again.samples)
    assert not np.array_equal(first.samples, other.samples)


def test_one_thread_equals_two(golden_paths: dict[str, Path], tts: Magpie) -> None:
    with Magpie.load(**golden_paths, device="cpu", threads=1) as other:
        assert np.array_equal(other.synthesize(TEXT, **SAMPLED).samples, tts.synthesize(TEXT, **SAMPLED).samples)


@pytest.mark.parametrize(("first", "steady"), [(1, 4), (5, 3), (2, 100)])
def test_borders_are_a_function_of_the_frame_count(tts: Magpie, first: int, steady: int) -> None:
    stream = tts.stream(TEXT, first_chunk_frames=first, chunk_frames=steady, **GREEDY)
    chunks = list(stream)
    frames = [len(chunk.samples) / tts.codec.samples_per_frame for chunk in chunks]
    total = int(sum(frames))
    rest = (total - first) % steady
    assert frames == [first, *[steady] * ((total - first) // steady), *([rest] if rest else [])]
    assert [chunk.start for chunk in chunks] == pytest.approx(np.cumsum([0.0] + [c.duration for c in chunks[:-1]]))
    assert all(chunk.sample_rate == 22050 and chunk.text == stream.texts[0] for chunk in chunks)


def test_metrics_and_progress(tts: Magpie) -> None:
    seen: list[Progress] = []
    stream = tts.stream(TEXT, progress=seen.append, **GREEDY)
    chunks = list(stream)
    metrics = stream.metrics
    samples = sum(len(chunk.samples) for chunk in chunks)
    assert metrics.codec_chunks == len(chunks) and metrics.e2e_audio_s == samples / 22050
    assert metrics.host_copies_per_chunk == 2
    assert 0 < metrics.e2e_ttfa_ms < metrics.e2e_elapsed_s * 1e3
    assert metrics.e2e_rtfx == pytest.approx(1 / metrics.e2e_rtf)
    zero = [key for key, value in metrics.as_dict().items() if not value > 0]
    assert zero == []
    assert [p.frames for p in seen] == [*range(1, seen[-1].frames + 1), seen[-1].frames]
    assert (seen[0].piece, seen[-1].piece, seen[-1].pieces) == (0, 1, 1)
    assert seen[-1].audio_s == pytest.approx(metrics.e2e_audio_s)


def test_closing_cancels_within_a_step_and_leaves_the_model_usable(synthetic: Magpie) -> None:
    text = f"{TEXT} " * 5
    fresh = synthetic.synthesize(TEXT, **SAMPLED).samples
    seen: list[Progress] = []
    stream = synthetic.stream(text, progress=seen.append, first_chunk_frames=2, **SAMPLED)
    next(stream)
    made = seen[-1].frames
    stream.close()
    assert seen[-1].frames == made == 2 and next(stream, None) is None
    assert np.array_equal(synthetic.synthesize(TEXT, **SAMPLED).samples, fresh)


def test_a_consumer_that_raises_leaves_the_model_usable(synthetic: Magpie) -> None:
    with pytest.raises(ZeroDivisionError), synthetic.stream(TEXT, **SAMPLED) as stream:
        for _ in stream:
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        synthetic.stream(TEXT, progress=lambda _: 1 // 0).__next__()
    assert synthetic.synthesize(TEXT, **GREEDY).duration > 0


def test_an_abandoned_stream_frees_the_model(synthetic: Magpie) -> None:
    stream = synthetic.stream(TEXT, **GREEDY)
    next(stream)
    del stream
    gc.collect()
    assert synthetic.synthesize(TEXT, **GREEDY).duration > 0


def test_a_second_stream_in_the_same_thread_is_an_error_and_no_deadlock(synthetic: Magpie) -> None:
    with synthetic.stream(TEXT, **GREEDY) as stream:
        next(stream)
        with pytest.raises(MagpieError, match="exhaust or close it first"):
            synthetic.synthesize(TEXT, **GREEDY)
        assert sum(1 for _ in stream) > 0  # the first goes on
    assert synthetic.synthesize(TEXT, **GREEDY).duration > 0


def test_four_threads_equal_their_solo_runs(synthetic: Magpie) -> None:
    jobs = [(f"{word}, {TEXT}", seed) for seed, word in enumerate(["Fox", "She sings", "My very world", "Boy"])]
    solo = [synthetic.synthesize(text, seed=seed).samples for text, seed in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda job: synthetic.synthesize(job[0], seed=job[1]).samples, jobs * 2))
    assert all(np.array_equal(a, b) for a, b in zip(solo * 2, together, strict=True))


def test_on_one_cpu_the_two_pools_take_turns(synthetic: Magpie, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never do two graphs compute at the same time, nor in two threads, each of which would bring an OpenMP team."""
    from pymagpie.ggml import Graph

    running, most, guard, compute = 0, 0, threading.Lock(), Graph.compute
    threads: set[int] = set()

    def counted(graph: Graph) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
            threads.add(threading.get_ident())
        compute(graph)
        with guard:
            running -= 1

    monkeypatch.setattr(Graph, "compute", counted)
    synthetic.synthesize(TEXT, first_chunk_frames=1, chunk_frames=2, **GREEDY)
    assert most == 1 and threads == {threading.get_ident()}


def test_forty_sentences_of_very_different_length(synthetic: Magpie) -> None:
    words = "hello world my very quick yellow fox jumped after the cheerful thinking dog".split()
    sentences = [
        " ".join(words[(i + j) % len(words)] for j in range(15 if i % 2 else 1)).capitalize() + "." for i in range(40)
    ]
    stream = synthetic.stream(" ".join(sentences), chunk_frames=64, cfg_scale=1.0, **GREEDY)
    spoken: list[str] = []
    for chunk in stream:
        assert np.isfinite(chunk.samples).all()
        spoken += [text for text in stream.texts if text in chunk.text and text not in spoken[-2:]]
    assert " ".join(stream.texts).split() == " ".join(sentences).split()  # nothing dropped, in order
    assert len(stream.texts) > 20
    result = stream._call.generation.result
    assert len(result.pieces) == len(stream.texts) and all(piece.frames > 0 for piece in result.pieces)
    pauses = len(stream.texts) - 1
    assert 6 * pauses <= result.silence_frames <= 10 * pauses


def test_chunks_name_the_pieces_they_hold(synthetic: Magpie) -> None:
    text = " ".join(f"The very quick fox number {word} jumped after the dog." for word in "abcde")
    stream = synthetic.stream(text, first_chunk_frames=1, chunk_frames=50, **GREEDY)
    chunks = list(stream)
    assert len(stream.texts) > 1 and chunks[0].text == stream.texts[0] and chunks[-1].text == stream.texts[-1]
    assert any(f"{stream.texts[0]} {stream.texts[1]}" in chunk.text for chunk in chunks)
    offline = synthetic.codec.decode(codes_of(synthetic, text, **GREEDY))
    assert np.array_equal(join(chunks), offline)


def test_truncation_is_said(synthetic: Magpie, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pymagpie"):
        audio = synthetic.synthesize(TEXT, max_steps=5, **GREEDY)
    assert isinstance(audio, Audio) and audio.truncated and audio.duration == 5 * 1024 / 22050
    assert "step" in caplog.text
    assert not synthetic.synthesize(TEXT, **GREEDY).truncated


def test_voices_and_languages(tts: Magpie) -> None:
    assert tts.voices == ["Aria", "Jason", "John"] and tts.languages == ["en", "es"]
    by_name = tts.synthesize(TEXT, "jAsOn", "EN-us", **GREEDY)
    assert np.array_equal(by_name.samples, tts.synthesize(TEXT, 1, **GREEDY).samples)
    assert not np.array_equal(by_name.samples, tts.synthesize(TEXT, **GREEDY).samples)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"voice": "nobody"}, "Aria, Jason, John"),
        ({"voice": 3}, "Aria, Jason, John"),
        ({"lang": "tlh"}, "en, es"),
        ({"lang": "???"}, "language code"),
        ({"text": ""}, "nothing that can be spoken"),
        ({"text": " \n "}, "nothing that can be spoken"),
        ({"text": "?!"}, "nothing that can be spoken"),
        ({"text": b"bytes"}, "must be a string"),
        ({"text": "long " * 40}, "positions allow"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"cfg_scale": float("inf")}, "cfg_scale"),
        ({"chunk_frames": 0}, "chunk_frames must be a whole number from 1 to 256"),
        ({"first_chunk_frames": 257}, "first_chunk_frames"),
        ({"chunk_frames": 1.5}, "chunk_frames"),
    ],
)
def test_wrong_arguments_are_found_before_any_work(tts: Magpie, arguments: dict, fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace("?", r"\?")):
        tts.stream(**{"text": TEXT, **arguments})


def test_closing_ends_open_streams(synthetic_paths: dict[str, Path]) -> None:
    tts = Magpie.load(**synthetic_paths, device="cpu", threads=1)
    stream = tts.stream(TEXT, **GREEDY)
    next(stream)
    unstarted = tts.stream(TEXT, **GREEDY)
    tts.close()
    tts.close()
    assert next(stream, None) is None and next(unstarted, None) is None
    with pytest.raises(ValueError, match="closed"):
        tts.stream(TEXT)


def test_closing_from_another_thread_ends_a_call_under_way(synthetic_paths: dict[str, Path]) -> None:
    tts = Magpie.load(**synthetic_paths, device="cpu", threads=1)
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(lambda: tts.synthesize(f"{TEXT} " * 50, progress=lambda _: begun.set(), **GREEDY))
        assert begun.wait(30)
        tts.close()
        with pytest.raises(MagpieError, match="closed while it spoke"):
            call.result(30)


def test_models_that_do_not_belong_together(synthetic_paths: dict[str, Path], tmp_path: Path) -> None:
    from pymagpie.synthetic import write_nanocodec

    codec = write_nanocodec(tmp_path / "c.gguf", base_channels=64, num_codebooks=4)
    with pytest.raises(ModelError, match="8 codebooks of 2016 codes, but the codec reads 4"):
        Magpie.load(**{**synthetic_paths, "codec": codec})
    with pytest.raises(ModelError):
        Magpie.load(**{**synthetic_paths, "model": codec})
    with pytest.raises(ModelNotFoundError, match="none"):
        Magpie.load(**{**synthetic_paths, "codec": tmp_path / "none.gguf"})


def test_importing_is_cheap_and_local_files_need_no_hub(synthetic_paths: dict[str, Path]) -> None:
    script = (
        "import sys, pymagpie\n"
        "heavy = ('numpy', 'ggml', 'soundfile', 'huggingface_hub', 'torch', 'tqdm', 'argparse')\n"
        "print([m for m in heavy if m in sys.modules])\n"
        f"pymagpie.Magpie.load({str(synthetic_paths['model'])!r}, {str(synthetic_paths['codec'])!r}).close()\n"
        "print([m for m in ('huggingface_hub', 'torch', 'soundfile', 'requests') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr

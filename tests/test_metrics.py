"""The speed figures are what spec and documentation say they are."""

from __future__ import annotations

import time

import pytest

from pymagpie.metrics import CodecClock, SpeechClock, SpeechMetrics, intervals_ms, mean, percentile, rtf, rtfx

KEYS = (
    "encoder_ms decoder_ttft_ms decoder_itl_avg_ms decoder_itl_p95_ms decoder_rtfx codec_ttfa_ms codec_icl_avg_ms "
    "codec_rtfx e2e_audio_s e2e_elapsed_s e2e_rtf e2e_rtfx e2e_ttfa_ms codec_chunks host_copies_per_chunk"
).split()


def test_rtf_and_rtfx() -> None:
    assert rtf(audio_s=4.0, elapsed_s=1.0) == 0.25
    assert rtfx(audio_s=4.0, elapsed_s=1.0) == 4.0
    assert rtf(0.0, 1.0) == rtfx(1.0, 0.0) == 0.0


def test_percentile_is_nearest_rank() -> None:
    values = [15.0, 20, 35, 40, 50]  # the textbook example
    assert [percentile(values, p) for p in (5, 30, 40, 50, 100)] == [15, 20, 20, 35, 50]
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([], 95) == 0 and percentile([7.0], 1) == 7
    for p in (0, -1, 101):
        with pytest.raises(ValueError):
            percentile(values, p)


def test_intervals_need_two_events() -> None:
    assert intervals_ms([]) == intervals_ms([1.0]) == []
    assert intervals_ms([1.0, 1.5, 1.75]) == [500, 250]
    assert mean([]) == 0 and mean([1.0, 2.0]) == 1.5


def test_codec_clock() -> None:
    clock = CodecClock(1000)
    assert clock.ttfa_ms == clock.rtfx == clock.audio_s == clock.host_copies_per_chunk == 0
    for samples in (300, 200):
        clock.start()
        time.sleep(0.05)  # waiting for codes
        clock.start()
        time.sleep(0.002)
        clock.stop(samples, 2)
    assert clock.samples == 500 and clock.audio_s == 0.5 and len(clock.chunk_ends) == 2
    assert clock.host_copies_per_chunk == 2
    assert clock.rtfx == pytest.approx(0.5 / clock.busy_s)
    assert 2 <= clock.ttfa_ms <= clock.busy_s * 1e3
    assert clock.busy_s <= clock.chunk_ends[1] - clock.begun - 0.05


def test_speech_metrics_from_known_times() -> None:
    codec = CodecClock(100, begun=12.0, chunk_ends=[12.5, 13.5], samples=200, busy_s=0.5, host_copies=4)
    clock = SpeechClock(
        frame_rate=2.0,
        codec=codec,
        encoder_ms=[200, 50],
        step_ms=[500, 250, 500, 750],
        frames=5,
        begun=10.0,
        first_audio=12.75,
        ended=14.0,
    )
    metrics = clock.metrics()
    assert metrics == SpeechMetrics(
        encoder_ms=250,
        decoder_ttft_ms=500,
        decoder_itl_avg_ms=500,
        decoder_itl_p95_ms=750,
        decoder_rtfx=(5 / 2.0) / 2.0,
        codec_ttfa_ms=500,
        codec_icl_avg_ms=1000,
        codec_rtfx=4,
        e2e_audio_s=2,
        e2e_elapsed_s=4,
        e2e_rtf=2,
        e2e_rtfx=0.5,
        e2e_ttfa_ms=2750,
        codec_chunks=2,
        host_copies_per_chunk=2,
    )
    pairs = dict(pair.split("=") for pair in metrics.line().split(" "))
    assert list(pairs) == KEYS and pairs["e2e_rtf"] == "2.0000" and pairs["codec_chunks"] == "2"
    assert list(metrics.as_dict()) == KEYS


def test_a_call_that_has_not_begun_has_zeros() -> None:
    clock = SpeechClock(frame_rate=21.5, codec=CodecClock(22050))
    assert set(clock.metrics().as_dict().values()) == {0}
    clock.begin(before_s=2.0)
    assert clock.metrics().e2e_elapsed_s >= 2

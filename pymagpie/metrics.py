"""What the speed figures mean, in one place.

========================  ==============================================================================
``rtf``                   compute seconds per second of audio (lower is better)
``rtfx``                  seconds of audio per compute second (higher is better), 1 / rtf
``ttfa``                  time to first audio: from the start of the work to the first playable chunk
``itl``                   inter-token latency: between consecutive decoder steps, suppressed ones too
``icl``                   inter-chunk latency: between consecutive codec chunks
``p95`` and the like      nearest rank: the value at index ceil(p / 100 * n) of the sorted n values, from 1
========================  ==============================================================================

Intervals need two events; with fewer they are 0. The names are those of NVIDIA's C++ runtime. The end-to-end clock
starts with the call, tokenising included; the *codec* clock at the first codec decode. The *decoder* clock runs while
the decoder does: the time in which the codec has its turn on a shared CPU, or the caller handles a chunk, is not the
decoder's. A step of a model that stacks frames makes several of them at once and is one event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter


def rtf(audio_s: float, elapsed_s: float) -> float:
    """Compute seconds per second of audio; 0 without audio."""
    return elapsed_s / audio_s if audio_s > 0 else 0.0


def rtfx(audio_s: float, elapsed_s: float) -> float:
    """Seconds of audio per compute second; 0 when no time has passed."""
    return audio_s / elapsed_s if elapsed_s > 0 else 0.0


def percentile(values: Sequence[float], p: float) -> float:
    """The p-th percentile (0 < p <= 100) by nearest rank; 0 for no values."""
    if not 0 < p <= 100:
        raise ValueError(f"percentile {p} is outside (0, 100]")
    if not values:
        return 0.0
    return sorted(values)[math.ceil(p / 100 * len(values)) - 1]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 for no values."""
    return sum(values) / len(values) if values else 0.0


def intervals_ms(times: Sequence[float]) -> list[float]:
    """Milliseconds between consecutive times given in seconds."""
    return [(b - a) * 1e3 for a, b in zip(times, times[1:], strict=False)]


@dataclass
class CodecClock:
    """Times of codec chunks: ``start`` when a decode begins, ``stop`` with what it gave."""

    sample_rate: int
    begun: float | None = None
    chunk_ends: list[float] = field(default_factory=list)
    samples: int = 0
    busy_s: float = 0.0
    host_copies: int = 0
    _started: float = 0.0

    def start(self) -> None:
        """A decode begins. Called again before ``stop``, the last call counts."""
        self._started = perf_counter()

    def stop(self, samples: int, host_copies: int) -> None:
        """The decode has delivered ``samples`` samples with so many copies between host and device."""
        now = perf_counter()
        if self.begun is None:
            self.begun = self._started
        self.busy_s += now - self._started
        self.chunk_ends.append(now)
        self.samples += samples
        self.host_copies += host_copies

    @property
    def audio_s(self) -> float:
        """Seconds of audio so far."""
        return self.samples / self.sample_rate

    @property
    def ttfa_ms(self) -> float:
        """Codec clock start to first chunk."""
        return (self.chunk_ends[0] - self.begun) * 1e3 if self.begun is not None else 0.0

    @property
    def rtfx(self) -> float:
        """Audio seconds per second of pure decoding."""
        return rtfx(self.audio_s, self.busy_s)

    @property
    def host_copies_per_chunk(self) -> float:
        """Copies between host and device, a chunk."""
        return self.host_copies / len(self.chunk_ends) if self.chunk_ends else 0.0


@dataclass
class SpeechMetrics:
    """The figures of one call, in the order in which ``--verbose`` prints them."""

    encoder_ms: float = 0.0
    decoder_ttft_ms: float = 0.0
    decoder_itl_avg_ms: float = 0.0
    decoder_itl_p95_ms: float = 0.0
    decoder_rtfx: float = 0.0
    codec_ttfa_ms: float = 0.0
    codec_icl_avg_ms: float = 0.0
    codec_rtfx: float = 0.0
    e2e_audio_s: float = 0.0
    e2e_elapsed_s: float = 0.0
    e2e_rtf: float = 0.0
    e2e_rtfx: float = 0.0
    e2e_ttfa_ms: float = 0.0
    codec_chunks: int = 0
    host_copies_per_chunk: float = 0.0

    def as_dict(self) -> dict[str, float | int]:
        """The figures by name."""
        return asdict(self)

    def line(self) -> str:
        """One line of ``key=value`` pairs: ratios with four places, times with two or three, counts as integers."""
        places = {"e2e_rtf": 4, "e2e_audio_s": 3, "e2e_elapsed_s": 3}
        return " ".join(
            f"{key}={value}" if isinstance(value, int) else f"{key}={value:.{places.get(key, 2)}f}"
            for key, value in self.as_dict().items()
        )


@dataclass
class SpeechClock:
    """Collects the times of one call and turns them into ``SpeechMetrics``.

    The codec's clock is written by the codec's thread, the rest by the caller's; they are read when both have ended.
    ``encoder_ms`` has the time of the text encoder for each piece, ``step_ms`` that of each decoder step.
    """

    frame_rate: float
    codec: CodecClock
    encoder_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    frames: int = 0
    begun: float | None = None
    first_audio: float | None = None
    ended: float | None = None

    def begin(self, before_s: float = 0.0) -> None:
        """The call begins; ``before_s`` seconds of its work are done already."""
        self.begun = perf_counter() - before_s

    def audio(self) -> None:
        """A chunk reaches the caller; only the first call counts."""
        if self.first_audio is None:
            self.first_audio = perf_counter()

    def finish(self) -> None:
        """The call ends."""
        self.ended = perf_counter()

    def metrics(self) -> SpeechMetrics:
        """The figures as of ``finish``, or as of now."""
        begun = 0.0 if self.begun is None else self.begun
        ended = self.ended if self.ended is not None else perf_counter() if self.begun is not None else 0.0
        chunk_ms = intervals_ms(self.codec.chunk_ends)
        audio_s, elapsed_s = self.codec.audio_s, ended - begun
        return SpeechMetrics(
            encoder_ms=sum(self.encoder_ms),
            decoder_ttft_ms=self.step_ms[0] if self.step_ms else 0.0,
            decoder_itl_avg_ms=mean(self.step_ms[1:]),
            decoder_itl_p95_ms=percentile(self.step_ms[1:], 95),
            decoder_rtfx=rtfx(self.frames / self.frame_rate, sum(self.step_ms) / 1e3),
            codec_ttfa_ms=self.codec.ttfa_ms,
            codec_icl_avg_ms=mean(chunk_ms),
            codec_rtfx=self.codec.rtfx,
            e2e_audio_s=audio_s,
            e2e_elapsed_s=elapsed_s,
            e2e_rtf=rtf(audio_s, elapsed_s),
            e2e_rtfx=rtfx(audio_s, elapsed_s),
            e2e_ttfa_ms=(self.first_audio - begun) * 1e3 if self.first_audio is not None else 0.0,
            codec_chunks=len(self.codec.chunk_ends),
            host_copies_per_chunk=self.codec.host_copies_per_chunk,
        )

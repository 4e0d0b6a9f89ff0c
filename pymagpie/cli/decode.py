"""``pymagpie decode``: codec tokens to audio."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pymagpie.cli.common import (
    add_device_options,
    add_json_option,
    device_options,
    file_digest,
    positive_int,
    print_json,
    say,
)

if TYPE_CHECKING:
    from pymagpie.metrics import CodecClock
    from pymagpie.nanocodec import NanoCodec

HELP = "codec tokens to audio"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M.gguf", help="NanoCodec (PYMAGPIE_CODEC; default: the published one)")
    parser.add_argument(
        "--codes",
        default="-",
        metavar="C.txt",
        help="codes, one frame a line, or a .npy array (frames, codebooks); default '-': standard input",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="wav, flac, ogg or mp3 by extension; '-' streams a WAV to standard output",
    )
    parser.add_argument("--raw", action="store_true", help="write headerless 16-bit little-endian samples")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--chunk-frames", type=positive_int, default=4, metavar="N", help="frames decoded at a time (default 4)"
    )
    mode.add_argument("--offline", action="store_true", help="decode all frames at once")
    add_device_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from pymagpie.audio import check_output, open_output
    from pymagpie.cli.codes import read_codes
    from pymagpie.hub import resolve_codec
    from pymagpie.metrics import CodecClock
    from pymagpie.nanocodec import OFFLINE_FRAMES, NanoCodec
    from pymagpie.pipeline import arriving, timed

    check_output(args.output, args.raw)
    with NanoCodec.load(resolve_codec(args.model), **device_options(args)) as codec:
        codes = read_codes(args.codes, codec.num_codebooks, codec.codebook_size)
        if args.offline and not isinstance(codes, np.ndarray):
            codes = np.stack(list(codes))
        frames = OFFLINE_FRAMES if args.offline else args.chunk_frames
        clock = CodecClock(codec.sample_rate)
        with open_output(args.output, codec.sample_rate, args.raw) as writer:
            source = codes if isinstance(codes, np.ndarray) else arriving(codes, clock)
            for samples in timed(codec.stream(source, frames), clock):
                writer.write(samples)
        _report(args, codec, clock)
    return 0


def _report(args: argparse.Namespace, codec: NanoCodec, clock: CodecClock) -> None:
    frames = clock.samples // codec.samples_per_frame
    if not args.json:
        say(f"{args.output}: {frames} frames, {clock.audio_s:.2f} s of audio at {clock.rtfx:.2f} x real time")
        return
    report = {
        "frames": frames,
        "samples": clock.samples,
        "audio_s": round(clock.audio_s, 6),
        "chunks": len(clock.chunk_ends),
        "codec_ttfa_ms": round(clock.ttfa_ms, 3),
        "codec_rtfx": round(clock.rtfx, 4),
        "host_copies_per_chunk": clock.host_copies_per_chunk,
        "device": codec.device,
        "threads": codec.backend.threads,
        "kernels": codec.kernels,
        "model_digest": file_digest(codec.path),
    }
    print_json(report, stdout_taken=args.output == "-")

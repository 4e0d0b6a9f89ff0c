"""``pymagpie synthesize``: text to speech."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymagpie.cli.common import (
    add_device_options,
    add_json_option,
    add_sampling_options,
    device_options,
    positive_int,
    print_json,
    say,
)

if TYPE_CHECKING:
    from pymagpie.audio import Writer
    from pymagpie.speech_stream import Progress, SpeechStream

HELP = "text to speech"
DEFAULT_OUTPUT = "speech.wav"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the text; without it and -i, standard input is read")
    parser.add_argument("-i", "--input", metavar="FILE", help="read the text from a UTF-8 file ('-': standard input)")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="wav, flac, ogg or mp3 by extension; '-' streams a WAV to standard output "
        f"(default {DEFAULT_OUTPUT}, or no file with --play)",
    )
    parser.add_argument("--raw", action="store_true", help="write headerless 16-bit little-endian samples")
    parser.add_argument("--play", action="store_true", help="play the speech as it is made")
    parser.add_argument("--voice", default="0", metavar="V", help="a name or index (default 0; see 'pymagpie voices')")
    parser.add_argument("--lang", default="en", metavar="CODE", help="language, like en or en-US (default en)")
    add_model_options(parser)
    add_device_options(parser)
    parser.add_argument("--codec-device", metavar="D", help="device of the codec (default: that of --device)")
    add_sampling_options(parser)
    parser.add_argument(
        "--first-chunk-frames", type=positive_int, metavar="N", help="frames in the stream's first chunk (default 4)"
    )
    parser.add_argument(
        "--chunk-frames", type=positive_int, metavar="N", help="frames in each further one (default 8; on a GPU 32)"
    )
    parser.add_argument("--sample-rate", type=positive_int, metavar="HZ", help="resample (default: the model's rate)")
    parser.add_argument(
        "--normalize", action="store_true", help="read out numbers, dates and the like (pymagpie[normalize])"
    )
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("--verbose", action="store_true", help="print one line of metrics, and more of the log")
    volume.add_argument("--quiet", action="store_true", help="print errors only")
    add_json_option(parser)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M.gguf", help="acoustic model (PYMAGPIE_MODEL; default: the published one)")
    parser.add_argument("--codec", metavar="C.gguf", help="codec (PYMAGPIE_CODEC; default: the published one)")
    parser.add_argument("--assets", metavar="DIR", help="tokeniser dictionaries (PYMAGPIE_ASSETS; default: M.assets)")


def run(args: argparse.Namespace) -> int:
    from pymagpie import Magpie
    from pymagpie.audio import check_output, open_output, resample
    from pymagpie.playback import check_player, open_player

    output = args.output or (None if args.play else DEFAULT_OUTPUT)
    if output is not None:
        check_output(output, args.raw)
    if args.play:
        check_player()
    text = _text(args)
    with ExitStack() as stack:
        tts = stack.enter_context(
            Magpie.load(args.model, args.codec, args.assets, codec_device=args.codec_device, **device_options(args))
        )
        bar = stack.enter_context(_ProgressBar(args))
        stream = stack.enter_context(tts.stream(text, progress=bar.update, **_speech_options(args)))
        rate = args.sample_rate or tts.sample_rate
        chunks = stream if rate == tts.sample_rate else resample(stream, rate)
        with ExitStack() as outputs:
            writers: list[Writer] = []
            if output is not None:
                writers.append(outputs.enter_context(open_output(output, rate, args.raw)))
            if args.play:
                writers.append(outputs.enter_context(open_player(rate)))
            for chunk in chunks:
                for writer in writers:
                    writer.write(chunk.samples)
    _report(args, output, rate, stream)
    return 0


def _speech_options(args: argparse.Namespace) -> dict[str, Any]:
    options = {
        "voice": args.voice,
        "lang": args.lang,
        "seed": args.seed,
        "temperature": 0.0 if args.greedy else args.temperature,
        "top_k": args.top_k,
        "cfg_scale": args.cfg_scale,
        "first_chunk_frames": args.first_chunk_frames,
        "chunk_frames": args.chunk_frames,
        "normalize": args.normalize,
    }
    return {name: value for name, value in options.items() if value is not None}


def _text(args: argparse.Namespace) -> str:
    if args.text and args.input is not None:
        raise ValueError("give the text as arguments or with --input, not both")
    if args.text and args.text != ["-"]:
        return " ".join(args.text)
    source = args.input or "-"
    if source == "-" and sys.stdin.isatty():
        raise ValueError("no text: give it as an argument, with --input FILE, or through a pipe")
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read {source}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        name = "standard input" if source == "-" else source
        raise ValueError(f"{name} is not UTF-8 text (byte {error.start})") from None


class _ProgressBar:
    """Sentences done and seconds of audio made, on standard error when it is a terminal."""

    def __init__(self, args: argparse.Namespace) -> None:
        from tqdm import tqdm

        # disable=None: off where standard error is no terminal.
        hidden = True if args.quiet or args.json else None
        self._bar = tqdm(unit="sentence", disable=hidden, leave=False, miniters=0)

    def update(self, progress: Progress) -> None:
        if not self._bar.disable:
            self._bar.total = progress.pieces
            self._bar.set_postfix_str(f"{progress.audio_s:.1f} s of audio", refresh=False)
            self._bar.update(progress.piece - self._bar.n)

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _report(args: argparse.Namespace, output: str | None, sample_rate: int, stream: SpeechStream) -> None:
    metrics = stream.metrics
    if args.verbose:
        say(metrics.line())
    if args.json:
        report: dict[str, Any] = {key: round(value, 6) for key, value in metrics.as_dict().items()}
        report.update(
            output=output,
            sample_rate=sample_rate,
            seed=stream.seed,
            voice=stream.voice,
            lang=stream.lang,
            truncated=stream.truncated,
        )
        print_json(report, stdout_taken=output == "-")
    elif not args.quiet and not args.verbose:
        where = "played" if output is None else output
        say(f"{where}: {metrics.e2e_audio_s:.2f} s of speech at {metrics.e2e_rtfx:.2f} x real time, seed {stream.seed}")

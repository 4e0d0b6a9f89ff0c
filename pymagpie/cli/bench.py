"""``pymagpie bench``: how fast the codec or the acoustic model is on this machine."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pymagpie.cli.common import add_device_options, add_json_option, device_options, positive_int, print_json, say

HELP = "measure the speed of the codec or of the acoustic model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("codec", "acoustic"), help="what to measure")
    parser.add_argument("--model", metavar="GGUF", help="the model file (default: a random one of the full size)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="time for each figure (default 10)")
    add_device_options(parser)
    add_json_option(parser)
    codec = parser.add_argument_group("codec")
    codec.add_argument("--chunks", type=chunk_sizes, default=[1, 4, 16, 64], metavar="N,N",
                       help="chunk sizes in frames (default 1,4,16,64)")
    codec.add_argument("--kernels", type=lambda text: text.split(","), default=["auto", "stock"], metavar="K,K",
                       help="formulations that take turns: auto, native, batched, stock, dense (default auto,stock)")
    codec.add_argument("--torch", action="store_true", help="measure PyTorch's convolutions beside them (CPU)")
    acoustic = parser.add_argument_group("acoustic")
    acoustic.add_argument("--size", choices=("v2602", "v2607"), default="v2602",
                          help="generation of the random model (default v2602)")
    acoustic.add_argument("--outtypes", type=lambda text: text.split(","), metavar="T,T",
                          help="weight types of the random models (default q8_0,f16)")


def chunk_sizes(text: str) -> list[int]:
    """An argparse type: chunk sizes joined by commas."""
    return [positive_int(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.seconds < 3600:
        raise ValueError(f"--seconds must be from 0 to 3600, not {args.seconds}")
    return _codec(args) if args.what == "codec" else _acoustic(args)


def _codec(args: argparse.Namespace) -> int:
    from pymagpie.nanocodec.bench import bench_codec, format_report

    with tempfile.TemporaryDirectory() as folder:
        model = args.model or _random_codec(Path(folder))
        report = bench_codec(model, chunks=args.chunks, kernels=args.kernels, torch=args.torch, seconds=args.seconds,
                             **device_options(args))
    report["model"] = args.model or "random weights, full size"
    print_json(report) if args.json else print(format_report(report))
    return 0


def _random_codec(folder: Path) -> Path:
    from pymagpie.synthetic import write_nanocodec

    say("writing a codec of the full size with random weights")
    return write_nanocodec(folder / "codec.gguf", base_channels=864)


def _acoustic(args: argparse.Namespace) -> int:
    from pymagpie.magpie.bench import bench_acoustic, format_report

    choices = {"size": args.size, **({"outtypes": args.outtypes} if args.outtypes else {})}
    report = bench_acoustic(args.model, seconds=args.seconds, **choices, **device_options(args))
    print_json(report) if args.json else print(format_report(report))
    return 0

"""``pymagpie convert``: a NeMo checkpoint to GGUF."""

from __future__ import annotations

import argparse

from pymagpie.cli.common import add_json_option, print_json

HELP = "a NeMo checkpoint (.nemo) to GGUF"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help=".nemo archive, directory extracted from one, or GGUF to retype")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.gguf", help="the file to write")
    parser.add_argument(
        "--outtype",
        default="f16",
        choices=("f16", "f32", "q8_0"),
        help="type of the matrices (default f16; q8_0 for MagpieTTS only)",
    )
    parser.add_argument(
        "--local-transformer-outtype",
        choices=("f16", "f32", "q8_0"),
        help="another type for the audio embeddings and the local transformer of MagpieTTS (default: as --outtype)",
    )
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from pymagpie.convert import convert

    result = convert(args.source, args.output, args.outtype, args.local_transformer_outtype)
    if args.json:
        print_json(
            {
                "output": str(result.path),
                "kind": result.kind,
                "outtype": result.outtype,
                "tensors": result.tensors,
                "bytes": result.bytes,
                "assets": str(result.assets) if result.assets else None,
            }
        )
    else:
        print(f"{result.path}: {result.kind}, {result.outtype}, {result.tensors} tensors, {result.bytes} bytes")
        if result.assets:
            print(f"{result.assets}: tokeniser files")
    return 0

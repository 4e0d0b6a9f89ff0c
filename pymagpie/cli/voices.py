"""``pymagpie voices``: the voices of an acoustic model."""

from __future__ import annotations

import argparse

from pymagpie.cli.common import add_json_option, print_json

HELP = "voices of an acoustic model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M.gguf", help="MagpieTTS (PYMAGPIE_MODEL; default: the published one)")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from pymagpie.ggml import GGUFFile
    from pymagpie.hub import resolve_magpie
    from pymagpie.magpie import MagpieConfig

    model = resolve_magpie(args.model)
    with GGUFFile.open(model) as file:
        voices = MagpieConfig.from_metadata(file.metadata, str(model)).voices
    if args.json:
        print_json({"voices": list(voices), "default": voices[0]})
    else:
        for index, voice in enumerate(voices):
            print(f"{index}  {voice}{'  (default)' if index == 0 else ''}")
    return 0

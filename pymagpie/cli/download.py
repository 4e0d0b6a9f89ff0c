"""``pymagpie download``: the published models into the Hugging Face cache, checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pymagpie.cli.common import add_json_option, print_json

HELP = "download the published models and check them"
TARGETS = ("magpie", "nano-codec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        choices=TARGETS,
        help="magpie: acoustic model and tokeniser assets; nano-codec: the codec; default both. What is cached is "
        "checked against its sha256 and fetched again if damaged. HF_HOME, HF_TOKEN, HF_HUB_OFFLINE are honoured",
    )
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from pymagpie import hub

    parts: dict[str, dict[str, Callable[[], Path]]] = {
        "magpie": {
            "model": lambda: hub.fetch(hub.MAGPIE, verify=True),
            "assets": lambda: hub.fetch_assets(verify=True),
        },
        "nano-codec": {"model": lambda: hub.fetch(hub.CODEC, verify=True)},
    }
    report: dict[str, dict[str, str]] = {}
    for target in [args.target] if args.target else TARGETS:
        report[target] = {part: str(fetch()) for part, fetch in parts[target].items()}
    if args.json:
        print_json({**report, "licence": hub.LICENCE})
    else:
        for target, paths in report.items():
            for part, path in paths.items():
                print(f"{target} {part}: {path}")
    return 0

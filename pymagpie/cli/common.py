"""Options and small helpers that several verbs share."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def positive_int(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return value


def seed_int(text: str) -> int:
    """An argparse type: a seed, 0 .. 2^63 - 1."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer in 0..{(1 << 63) - 1}")
    return value


def environment(name: str, parse: Callable[[str], Any] = str) -> Any:
    """The value of an environment variable, None when it is unset or empty; ``ValueError`` when it does not parse."""
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{name}: {error}") from None


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """``--device`` and ``--threads``; ``device_options`` reads them."""
    parser.add_argument(
        "--device",
        metavar="D",
        help="auto, cpu, cuda, cuda:1, vulkan, metal or a name from 'pymagpie devices' (PYMAGPIE_DEVICE; default auto)",
    )
    parser.add_argument(
        "--threads",
        type=positive_int,
        metavar="N",
        help="CPU threads (PYMAGPIE_THREADS; default: physical cores within the CPU quota, at most 8)",
    )


def device_options(args: argparse.Namespace) -> dict[str, Any]:
    """``device`` and ``threads`` for a ``load``: command line, then environment, then default."""
    device = args.device or environment("PYMAGPIE_DEVICE") or "auto"
    threads = args.threads if args.threads is not None else environment("PYMAGPIE_THREADS", positive_int)
    return {"device": device, "threads": threads}


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """``--seed``, ``--greedy`` or ``--temperature``, ``--top-k`` and ``--cfg-scale``."""
    parser.add_argument("--seed", type=seed_int, metavar="N", help="repeats a run; default: one is drawn and reported")
    heat = parser.add_mutually_exclusive_group()
    heat.add_argument("--greedy", action="store_true", help="always take the likeliest code, as --temperature 0 does")
    heat.add_argument("--temperature", type=float, metavar="X", help="default: the model's; 0 is greedy")
    parser.add_argument("--top-k", type=positive_int, metavar="K", help="codes that are kept; default: the model's")
    parser.add_argument("--cfg-scale", type=float, metavar="S", help="guidance, 1 is none; default: the model's")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object (errors too, on standard error)")


def print_json(obj: Any, *, stdout_taken: bool = False) -> None:
    """Print one JSON object on a line, on standard error when standard output carries audio."""
    print(json.dumps(obj, ensure_ascii=False), file=sys.stderr if stdout_taken else sys.stdout)


def say(message: str) -> None:
    """Print a line for people on standard error."""
    print(message, file=sys.stderr)


def file_digest(path: str | os.PathLike[str]) -> str:
    """``sha256:`` and the hex digest of a file."""
    from pymagpie.hub import file_sha256

    return f"sha256:{file_sha256(Path(path))}"

"""``pymagpie generate``: text tokens to codec tokens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
    import numpy as np

    from pymagpie.magpie import AcousticModel, Generation

HELP = "text tokens to codec tokens"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M.gguf", help="MagpieTTS (PYMAGPIE_MODEL; default: the published one)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tokens", metavar="IDS", help="text tokens, like '17 4 583'; used as they are, EOS included")
    source.add_argument("--tokens-file", metavar="FILE", help="a file of text tokens ('-': standard input)")
    parser.add_argument(
        "-o", "--output", default="-", metavar="C.txt", help="codes, one frame a line (default '-': standard output)"
    )
    parser.add_argument("--voice", metavar="V", help="a name or index (default 0; see 'pymagpie voices')")
    add_sampling_options(parser)
    parser.add_argument("--max-steps", type=positive_int, metavar="N", help="decoder step limit (default: the model's)")
    parser.add_argument("--no-kv-cache", action="store_true", help="reference mode: recompute the prefix at each step")
    parser.add_argument("--rules", choices=("streaming", "nemo"), default="streaming", help="attention prior rules")
    add_device_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from pymagpie.audio import check_output
    from pymagpie.cli.codes import CodesWriter
    from pymagpie.hub import resolve_magpie
    from pymagpie.magpie import AcousticModel

    if args.output != "-":
        check_output(args.output, raw=True)
    tokens = _read_tokens(args)
    with AcousticModel.load(resolve_magpie(args.model), **device_options(args)) as model:
        generation = model.generate(
            tokens, voice=args.voice, seed=args.seed, temperature=0.0 if args.greedy else args.temperature,
            top_k=args.top_k, cfg_scale=args.cfg_scale, max_steps=args.max_steps, rules=args.rules,
            use_kv_cache=not args.no_kv_cache,
        )
        if tokens[-1] != model.text_eos:
            say(f"pymagpie: warning: the last token is {tokens[-1]}, not the text EOS {model.text_eos}")
        with generation, CodesWriter(args.output) as writer:
            for frame in generation:
                writer.write(frame)
        _report(args, model, generation)
    return 0


def _read_tokens(args: argparse.Namespace) -> list[int]:
    """The text tokens; ``ValueError`` naming the source for anything that is not a whole number."""
    if args.tokens is not None:
        text, where = args.tokens, "--tokens"
    elif args.tokens_file == "-":
        text, where = sys.stdin.read(), "standard input"
    else:
        path = Path(args.tokens_file)
        if not path.is_file():
            raise ValueError(f"{path}: no such file of tokens")
        try:
            text, where = path.read_text(encoding="utf-8-sig"), str(path)
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not a text file of tokens") from None
    words = text.translate(str.maketrans(",;[]", "    ")).split()
    tokens = []
    for word in words:
        digits = word[1:] if word[0] in "+-" else word
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise ValueError(f"{where}: {word[:20]!r} is not a token id")
        tokens.append(int(word))
    if not tokens:
        raise ValueError(f"{where}: contains no tokens")
    return tokens


def _report(args: argparse.Namespace, model: AcousticModel, generation: Generation[np.ndarray]) -> None:
    from pymagpie.metrics import mean

    result = generation.result
    if args.json:
        print_json(
            {
                "frames": result.frames,
                "steps": result.steps,
                "end_reason": result.end_reason,
                "truncated": result.truncated,
                "seed": result.seed,
                "voice": result.voice,
                "device": model.device,
                "threads": model.threads,
                "encoder_ms": round(sum(result.encoder_ms), 3),
                "step_ms": round(mean(result.step_ms), 3),
            },
            stdout_taken=args.output == "-",
        )
        return
    cut = ", cut off at the step limit" if result.truncated else ""
    say(f"{result.frames} frames in {result.steps} steps, ended by {result.end_reason}{cut}; voice {result.voice}, "
        f"seed {result.seed}")

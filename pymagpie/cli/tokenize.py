"""``pymagpie tokenize``: what a text becomes before the model sees it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from pymagpie.cli.common import add_json_option, print_json, say

if TYPE_CHECKING:
    from pymagpie.text import Piece, Tokenizer

HELP = "show the tokens of a text"
_WITHOUT_FILES = ("fr", "hi", "it", "ja", "vi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to tokenise; standard input without it or with -")
    parser.add_argument("--assets", metavar="DIR", help="dictionaries (PYMAGPIE_ASSETS; default: the model's)")
    parser.add_argument("--model", metavar="M.gguf", help="acoustic model whose vocabulary to use (default: v2602's)")
    parser.add_argument("--lang", default="en", metavar="CODE", help="language, like en or en-US (default en)")
    parser.add_argument("--raw", action="store_true", help="tokenise the text as it stands: no cleaning, no splitting")
    parser.add_argument("--normalize", action="store_true", help="write the text in spoken form first")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    text = args.text if args.text not in (None, "-") else _standard_input()
    tokenizer = _load(args)
    warnings: list[str] = []
    if args.raw:
        pieces = [_raw(tokenizer, text, args.lang)]
    else:
        pieces = tokenizer.pieces(text, args.lang, normalize=args.normalize, warnings=warnings)
    if args.json:
        print_json(
            {
                "lang": args.lang,
                "ids": [i for piece in pieces for i in piece.ids],
                "pieces": [{"text": p.text, "phonemes": p.phonemes, "ids": list(p.ids)} for p in pieces],
                "warnings": warnings,
            }
        )
        return 0
    for warning in warnings:
        say(f"pymagpie: warning: {warning}")
    for piece in pieces:
        say(f"{piece.text} | {piece.phonemes}")
        print(*piece.ids)
    return 0


def _load(args: argparse.Namespace) -> Tokenizer:
    from pymagpie.hub import resolve_assets
    from pymagpie.text import Tokenizer
    from pymagpie.text.languages import canonical_code

    metadata: dict[str, Any] = {}
    if args.model:
        from pymagpie.ggml import GGUFFile

        with GGUFFile.open(args.model) as file:
            metadata = dict(file.metadata)
    given = args.assets or os.environ.get("PYMAGPIE_ASSETS") or args.model
    if not given and canonical_code(args.lang) in _WITHOUT_FILES:
        return Tokenizer.load()
    assets = resolve_assets(args.assets, args.model)
    return Tokenizer.from_metadata(metadata, assets) if args.model else Tokenizer.load(assets)


def _raw(tokenizer: Tokenizer, text: str, lang: str) -> Piece:
    from pymagpie.text import Piece
    from pymagpie.text.hygiene import check_text

    check_text(text)
    language, offset = tokenizer.language(lang)
    tokens = language.tokens(text)
    ids = [offset + i for i in language.ids(tokens)]
    return Piece(text, language.show(tokens), (*ids, tokenizer.eos_id))


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not UTF-8 text (byte {error.start})") from None

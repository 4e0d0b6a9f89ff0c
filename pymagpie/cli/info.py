"""``pymagpie info``: what a model file holds."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from pymagpie.cli.common import add_json_option, print_json

HELP = "what a model file holds"
_SHOWN = 8  # elements of a list that the text form prints
_TEXT = 100  # characters of a string that the text form prints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="M.gguf")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from pymagpie.ggml import GGUFFile

    with GGUFFile.open(args.model) as file:
        summary = _summary(file)
        if args.tensors:
            summary["tensors"] = [
                {"name": t.name, "ne": list(t.ne), "type": _type(t), "bytes": t.nbytes} for t in file.tensors.values()
            ]
        if args.json:
            print_json(summary)
        else:
            _print(summary)
    return 0


def _summary(file: Any) -> dict[str, Any]:
    tensors = list(file.tensors.values())
    types = Counter(_type(tensor) for tensor in tensors)
    parameters = sum(_elements(tensor) for tensor in tensors)
    return {
        "path": str(file.path),
        "sha256": file.digest(),
        "gguf_version": file.version,
        "architecture": file.metadata.get("general.architecture"),
        "file_bytes": file.path.stat().st_size,
        "tensor_count": len(tensors),
        "tensor_types": dict(types.most_common()),
        "parameters": parameters,
        "metadata": file.metadata,
    }


def _print(summary: dict[str, Any]) -> None:
    from pymagpie.ggml import format_bytes

    types = ", ".join(f"{count} {name}" for name, count in summary["tensor_types"].items())
    print(f"file          {summary['path']} ({format_bytes(summary['file_bytes'])}, GGUF v{summary['gguf_version']})")
    print(f"sha256        {summary['sha256']}")
    print(f"architecture  {summary['architecture'] or 'not stated'}")
    print(f"parameters    {summary['parameters']:,}")
    print(f"tensors       {summary['tensor_count']} ({types})" if types else "tensors       0")
    print("metadata")
    for key, value in summary["metadata"].items():
        print(f"  {key} = {_short(value)}")
    for tensor in summary.get("tensors", ()):
        print(f"{tensor['name']:<60} {tensor['type']:<6} {tensor['ne']}")


def _short(value: Any) -> str:
    if isinstance(value, list):
        shown = ", ".join(_short(v) for v in value[:_SHOWN])
        return f"[{shown}, ... {len(value)} in all]" if len(value) > _SHOWN else f"[{shown}]"
    if isinstance(value, str):
        # repr: a file may hold control characters, which must not reach the terminal.
        return repr(value) if len(value) <= _TEXT else f"{value[:_TEXT]!r}... {len(value)} characters"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _type(tensor: Any) -> str:
    from pymagpie.ggml import type_name

    return type_name(tensor.type)


def _elements(tensor: Any) -> int:
    count = 1
    for n in tensor.ne:
        count *= n
    return count

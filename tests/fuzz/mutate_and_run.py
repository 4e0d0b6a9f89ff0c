"""Runs the command line on mutated copies of a GGUF, each in a child process of its own, and prints what happened.

    python mutate_and_run.py MODEL COUNT FOLDER OUTPUT_NAME -- pymagpie-arguments with {model} and {output}

The parent has everything imported and has computed nothing, so that a forked child starts at once and in a clean state.
Prints one JSON object a line: the mutation, the exit code or signal, the seconds, the peak memory in bytes, the lines
on stderr, and the files left.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import sys
import time
from pathlib import Path

import soundfile  # noqa: F401  imported here, so that no child has to

from pymagpie import AcousticModel, NanoCodec  # noqa: F401
from pymagpie.cli import main
from pymagpie.ggml import GGUFFile, list_devices

TIME_LIMIT = 30  # seconds of processor time, doubled on the clock
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def regions(path: Path) -> dict[str, tuple[int, int]]:
    """Byte ranges of the parts of a GGUF file."""
    with GGUFFile.open(path) as file:
        names = list(file.tensors)
        data_start = min(info.offset for info in file.tensors.values())
    blob = path.read_bytes()
    table = blob.index(struct.pack("<Q", len(names[0])) + names[0].encode())
    return {"header": (0, 24), "metadata": (24, table), "table": (table, data_start), "data": (data_start, len(blob))}


def mutate(blob: bytes, parts: dict[str, tuple[int, int]], rng: random.Random) -> tuple[str, bytes]:
    """One damaged copy, and what was done to it."""
    kind = rng.choice(("header", "metadata", "metadata", "table", "table", "table", "data", "cut", "insert", "number"))
    if kind == "cut":
        end = rng.randrange(len(blob)) if rng.random() < 0.5 else rng.randrange(parts["data"][0])
        return f"cut at {end}", blob[:end]
    data = bytearray(blob)
    if kind == "insert":
        at = rng.randrange(parts["data"][0])
        size = rng.choice((1, 4, 8, 32))
        if rng.random() < 0.5:
            del data[at:at + size]
            return f"{size} bytes deleted at {at}", bytes(data)
        data[at:at] = rng.randbytes(size)
        return f"{size} bytes inserted at {at}", bytes(data)
    if kind == "number":
        at = rng.randrange(0, parts["data"][0] - 8)
        width = rng.choice(("<I", "<Q"))
        value = rng.choice(INTERESTING) & ((1 << (32 if width == "<I" else 64)) - 1)
        struct.pack_into(width, data, at, value)
        return f"{width} {value} at {at}", bytes(data)
    start, end = parts[kind]
    changes = []
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(start, end)
        data[at] = rng.choice((data[at] ^ (1 << rng.randrange(8)), rng.choice(INTERESTING) & 0xFF, rng.randrange(256)))
        changes.append(at)
    return f"{kind} bytes {changes}", bytes(data)


def run(arguments: list[str], stderr: Path) -> dict[str, object]:
    """The command line in a forked child."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        with stderr.open("wb") as file:
            os.dup2(file.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT, TIME_LIMIT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(2 * TIME_LIMIT)
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 99
        sys.stderr.flush()
        os._exit(code)
    _, status, usage = os.wait4(child, 0)
    return {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "seconds": round(time.monotonic() - started, 3), "peak": usage.ru_maxrss * 1024,
            "stderr": stderr.read_text(errors="replace").splitlines()}


def fuzz(model: Path, count: int, folder: Path, output_name: str, arguments: list[str]) -> None:
    blob, parts = model.read_bytes(), regions(model)
    list_devices()
    rng = random.Random(20251201)
    damaged, output = folder / "damaged.gguf", folder / output_name
    for index in range(count):
        what, data = ("nothing", blob) if index == 0 else mutate(blob, parts, rng)
        damaged.write_bytes(data)
        output.unlink(missing_ok=True)
        result = run([part.format(model=damaged, output=output) for part in arguments], folder / "stderr.txt")
        left = sorted(path.name for path in folder.iterdir() if path.name not in (damaged.name, "stderr.txt"))
        kept = folder.parent / f"{index}{output.suffix}"
        if output.exists():
            output.rename(kept)
        print(json.dumps({"index": index, "what": what, "left": left, **result}), flush=True)


if __name__ == "__main__":
    separator = sys.argv.index("--")
    source, number, scratch, name = sys.argv[1:separator]
    fuzz(Path(source), int(number), Path(scratch), name, sys.argv[separator + 1:])

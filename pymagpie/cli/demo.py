"""``pymagpie demo``: the whole way from text to audio on small random models, with nothing to download."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pymagpie.cli.common import add_device_options, add_json_option, device_options, print_json, say, seed_int

HELP = "text to audio on small random models, nothing to download"
DEFAULT_TEXT = "Hello world, this is a demonstration. It shows that every part of the program works."
NOTE = """\
These models are random: what you hear is noise, not speech. It went through every part of the program all the same.
For a real voice:
  pip install 'pymagpie[download]'
  pymagpie download
  pymagpie synthesize "Hello world." -o hello.wav"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", default=DEFAULT_TEXT, metavar="TEXT", help="English text to put through")
    parser.add_argument("-o", "--output", default="demo.wav", metavar="FILE", help="default demo.wav")
    parser.add_argument("--seed", type=seed_int, default=1, metavar="N", help="of the sampler (default 1)")
    add_device_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from pymagpie import Magpie
    from pymagpie.audio import check_output, open_output
    from pymagpie.synthetic import write_magpie, write_nanocodec
    from pymagpie.text.demo_assets import write_demo_assets

    if args.output == "-":
        raise ValueError("the demo writes a file: name one with -o")
    check_output(args.output)
    with tempfile.TemporaryDirectory(prefix="pymagpie-demo-") as name:
        folder = Path(name)
        model, codec = write_magpie(folder / "magpie.gguf"), write_nanocodec(folder / "codec.gguf")
        assets = write_demo_assets(folder / "magpie.assets")
        with Magpie.load(model, codec, assets, **device_options(args)) as tts:
            stream = tts.stream(args.text, seed=args.seed)
            with stream, open_output(args.output, tts.sample_rate) as writer:
                for chunk in stream:
                    writer.write(chunk.samples)
            device, threads = tts.acoustic.device, tts.acoustic.threads
    metrics = stream.metrics
    if args.json:
        print_json({**metrics.as_dict(), "output": args.output, "seed": stream.seed, "device": device})
        return 0
    where = f"{device} with {threads} threads" if device == "CPU" else device
    print(f"{args.output}: {metrics.e2e_audio_s:.2f} s of audio in {metrics.e2e_elapsed_s:.2f} s on {where}")
    print(metrics.line())
    say(NOTE)
    return 0

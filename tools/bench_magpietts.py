#!/usr/bin/env python3
"""Time ``pymagpie synthesize`` on three texts, in processes of their own, on an idle machine.

    python tools/bench_magpietts.py --model M.gguf --codec C.gguf --assets M.assets --device cuda --greedy
    python tools/bench_magpietts.py --greedy --check
    python tools/bench_magpietts.py --greedy --vs "/other/venv/bin/python -m pymagpie synthesize"
    python tools/bench_magpietts.py --vs "nemo-speech synthesize -i {input} -o {output} --seed {seed} --verbose"

Each case is run `--reps` times after one run that does not count; medians and their spread are reported. ``--greedy``
holds the codes fixed, so that two builds are compared on the same audio. Without models, synthetic ones of the true
size are made. Programs run in a folder of their own; a word of a command that holds a slash is taken as a path from
here. Exit codes: 0 done, 1 a run failed, the hashes differ or the device did not become idle, 2 bad argument, 4 an
optional package is missing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchlib import gate, report
from benchlib.cases import CASES, Case
from benchlib.command import METRICS, Program, Run, RunError, check_extra, run_once, split_command
from benchlib.models import OUTTYPES, choose_models, models_given

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))  # the checkout need not be installed
DEFAULT_COMMAND = f"{shlex.quote(sys.executable)} -m pymagpie synthesize"


def positive_int(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def positive_float(text: str) -> float:
    """An argparse type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", metavar="M.gguf", help="acoustic model (PYMAGPIE_MODEL; default: synthetic)")
    parser.add_argument("--codec", metavar="C.gguf", help="codec (PYMAGPIE_CODEC; default: synthetic)")
    parser.add_argument("--assets", metavar="DIR", help="tokeniser assets (PYMAGPIE_ASSETS; default: M.assets)")
    parser.add_argument("--outtype", choices=OUTTYPES, help="weights of the synthetic acoustic model (default f16)")
    parser.add_argument("--device", default=os.environ.get("PYMAGPIE_DEVICE") or "auto", help="default auto")
    parser.add_argument("--codec-device", metavar="D", help="default: that of --device")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="CPU threads")
    parser.add_argument("--seed", type=int, default=1234, metavar="N", help="default 1234")
    parser.add_argument("--top-k", type=positive_int, metavar="K", help="default: the model's")
    parser.add_argument("--greedy", action="store_true", help="always the likeliest code: the same audio in each run")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this case (again)")
    parser.add_argument("--reps", type=positive_int, default=5, metavar="N", help="runs a case that count (default 5)")
    parser.add_argument("--check", action="store_true", help="compare the audio of the runs instead of timing them")
    parser.add_argument("--extra", default="", metavar="OPTIONS", help="further options for each run, one string")
    parser.add_argument(
        "--vs",
        metavar="COMMAND",
        help="another program, run in turn with ours; either the options of pymagpie synthesize are appended, or its "
        "{input} {text} {output} {seed} {device} {codec_device} {threads} {model} {codec} {assets} {top_k} are filled",
    )
    parser.add_argument("--command", default=DEFAULT_COMMAND, metavar="COMMAND", help="what to time; as --vs")
    parser.add_argument("--allow-busy-gpu", action="store_true", help="do not wait for an idle device")
    parser.add_argument("--idle-timeout", type=positive_float, default=300, metavar="S", help="default 300 seconds")
    parser.add_argument("--idle-interval", type=positive_float, default=1, metavar="S", help="default 1 second")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the medians and their spread (matplotlib)")
    args = parser.parse_args(argv)
    try:
        args.extra = check_extra(args.extra)
        for command in filter(None, (args.command, args.vs)):
            split_command(command)
    except ValueError as error:
        parser.error(str(error))
    if args.outtype and (args.command != DEFAULT_COMMAND or models_given(args.model, args.codec)):
        parser.error("--outtype chooses among synthetic models, but models or a program are given")
    if args.check and args.plot:
        parser.error("--plot draws timings; --check makes none")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        print("bench_magpietts: error: --plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 4
    try:
        with tempfile.TemporaryDirectory(prefix="bench_magpietts.") as folder:
            return Bench(args, Path(folder)).run()
    except (RunError, gate.GateError) as error:
        print(f"bench_magpietts: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench_magpietts: interrupted", file=sys.stderr)
        return 130


class Bench:
    """One run of the benchmark."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.cases = [case for case in CASES if not args.case or case.name in args.case]
        own = args.command != DEFAULT_COMMAND
        self.models = choose_models(args.model, args.codec, args.assets, args.outtype, own, folder, _say)
        self.devices = {name: resolve_device(name) for name in (args.device, args.codec_device) if name}
        self.gate = gate.make_gate(list(self.devices.values()), os.environ, args.idle_interval, args.idle_timeout)
        self.idle = "not waited for (--allow-busy-gpu)"
        self.programs = [self._program("A", args.command)] + ([self._program("B", args.vs)] if args.vs else [])

    def run(self) -> int:
        """Run all cases, print the report, return the exit code."""
        cases = []
        for number, case in enumerate(self.cases):
            self._wait("at the start" if number == 0 else f"before case {case.name!r}")
            cases.append(self._check(case) if self.args.check else self._time(case))
        result = self._describe() | {"cases": cases}
        if self.args.json:
            print(json.dumps(result, ensure_ascii=False))
        else:
            print((report.markdown_check if self.args.check else report.markdown_timing)(result))
        if self.args.plot:
            report.plot(result, self.args.plot)
        return self._verdict(cases) if self.args.check else 0

    def _time(self, case: Case) -> dict[str, Any]:
        for program in self.programs:  # not counted: files into the page cache, clocks up
            self._run(program, case)
        rounds = []
        for number in range(self.args.reps):
            rounds.append([self._run(program, case) for program in self.programs])
            _say(f"{case.name} {number + 1}/{self.args.reps}: " + ", ".join(map(_brief, rounds[-1])))
        runs = [pair[0] for pair in rounds]
        if runs[0].metrics is None:
            raise RunError(f"A: printed no line with {' '.join(METRICS)}")
        other = [pair[1] for pair in rounds] if self.args.vs else None
        return self._about(case) | report.case_report(runs, other)

    def _check(self, case: Case) -> dict[str, Any]:
        hashes: dict[str, list[str]] = {program.label: [] for program in self.programs}
        for number in range(self.args.reps):
            for program in self.programs:
                digest = self._run(program, case).sha256
                hashes[program.label].append(digest)
                _say(f"{case.name} {number + 1}/{self.args.reps}: {program.label} {digest}")
        return self._about(case) | {"sha256": hashes}

    def _verdict(self, cases: list[dict[str, Any]]) -> int:
        unequal = [
            f"{case['name']} ({label})"
            for case in cases
            for label, hashes in case["sha256"].items()
            if len(set(hashes)) > 1
        ]
        if unequal:
            _say(f"the audio differs from run to run: {', '.join(unequal)}")
        return 1 if unequal and self.args.greedy else 0

    def _run(self, program: Program, case: Case) -> Run:
        text = self.folder / f"{case.name}.txt"
        text.write_text(case.text, encoding="utf-8")
        return run_once(program, text, self.folder / f"{program.label}.wav", self.folder)

    def _wait(self, when: str) -> None:
        if self.args.allow_busy_gpu:
            return
        _say(f"waiting for an idle device {when}")
        self.idle = self.gate.wait(when)

    def _program(self, label: str, command: str) -> Program:
        args = self.args
        values = {
            "model": self.models.model,
            "codec": self.models.codec,
            "assets": self.models.assets,
            "device": args.device,
            "codec_device": args.codec_device,
            "threads": args.threads,
            "seed": args.seed,
            "top_k": args.top_k,
        }
        known = {name: str(value) for name, value in values.items() if value is not None}
        options = [word for name, value in known.items() for word in (f"--{name.replace('_', '-')}", value)]
        if args.greedy:
            options.append("--greedy")
        environment = _checkout_environment() if command == DEFAULT_COMMAND else dict(os.environ)
        return Program(label, split_command(command), (*options, *args.extra), known, environment)

    def _about(self, case: Case) -> dict[str, Any]:
        return {"name": case.name, "sentences": len(case.sentences), "characters": len(case.text)}

    def _describe(self) -> dict[str, Any]:
        args = self.args
        return {
            "date": datetime.date.today().isoformat(),
            "machine": {"cpu": _cpu_name(), "cores": os.cpu_count(), "gpu": _gpu_names()},
            "build": _build(self.programs[0]),
            "models": self.models.description,
            "device": ", codec on ".join(
                name if name == real else f"{name} ({real})" for name, real in self.devices.items()
            ),
            "threads": args.threads,
            "greedy": args.greedy,
            "seed": args.seed,
            "top_k": args.top_k,
            "extra": args.extra,
            "reps": args.reps,
            "idle": self.idle,
            "command": args.command,
            "vs": args.vs,
        }


def resolve_device(name: str) -> str:
    """ggml's name of the device that `name` means here ("auto" -> "CUDA0"), or `name` where that cannot be told."""
    if name.lower() in ("cpu", "metal") or gate.cuda_index(name) is not None:
        return name
    code = "import sys; from pymagpie.ggml import find_device; print(find_device(sys.argv[1]).name)"
    argv = [sys.executable, "-c", code, name]
    done = subprocess.run(argv, env=_checkout_environment(), capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else name


def _checkout_environment() -> dict[str, str]:
    """The environment with this checkout first on Python's path, so that it needs no installation."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def _build(program: Program) -> str:
    """What ``--version`` of a program says, or its command."""
    if "synthesize" in program.words:
        argv = [*program.words[: program.words.index("synthesize")], "--version"]
        done = subprocess.run(argv, env=dict(program.environment), capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    return " ".join(program.words)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _gpu_names() -> str | None:
    try:
        return ", ".join(sorted({gpu.name for gpu in gate.query_gpus()}))
    except gate.GateError:
        return None


def _brief(run: Run) -> str:
    if run.metrics:
        return f"e2e_rtf {run.metrics['e2e_rtf']:.4f}"
    return f"wall_rtf {run.wall_rtf:.4f}"


def _say(message: str) -> None:
    print(f"bench_magpietts: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

"""The command ``pymagpie``: one verb a module, imported only when it is asked for.

Results go to standard output; logs, progress and errors to standard error. Exit codes: 0 done, 1 runtime fault, 2 bad
argument or input, 3 model file missing, 4 capability not in this installation, 130 interrupted. A closed pipe ends the
program quietly with 0.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import NoReturn

from pymagpie.errors import CapabilityError, MagpieError, ModelError, ModelNotFoundError

VERBS = (
    "synthesize",
    "generate",
    "decode",
    "tokenize",
    "convert",
    "download",
    "voices",
    "devices",
    "info",
    "bench",
    "demo",
)


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``ValueError`` where the original prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _report("interrupted", "KeyboardInterrupt", 130, arguments)
    except BrokenPipeError:
        return _silence_stdout()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "pymagpie").startswith("pymagpie"):
            error = CapabilityError(f"the package {error.name} is not installed; run: pip install pymagpie")
        if os.environ.get("PYMAGPIE_DEBUG"):
            raise
        message = str(error) or type(error).__name__
        if not isinstance(error, (MagpieError, ValueError, OSError, MemoryError)):
            message = f"internal fault: {type(error).__name__}: {error} (PYMAGPIE_DEBUG=1 shows where)"
        return _report(message, type(error).__name__, exit_code(error), arguments)


def exit_code(error: Exception) -> int:
    """The exit code that belongs to an exception."""
    if isinstance(error, ModelNotFoundError):
        return 3
    if isinstance(error, CapabilityError):
        return 4
    return 2 if isinstance(error, (ValueError, ModelError)) else 1


def verb_module(verb: str) -> ModuleType:
    """The module of a verb: ``HELP``, ``add_arguments(parser)`` and ``run(args)``."""
    return importlib.import_module(f"pymagpie.cli.{verb}")


def verb_parser(verb: str) -> Parser:
    """The complete parser of a verb."""
    module = verb_module(verb)
    parser = Parser(prog=f"pymagpie {verb}", description=module.HELP, allow_abbrev=False)
    module.add_arguments(parser)
    return parser


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in VERBS:
        verb = arguments[0]
        args = verb_parser(verb).parse_args(arguments[1:])
        _configure_logging(args)
        _exit_on_sigterm()
        code = verb_module(verb).run(args)
        sys.stdout.flush()
        return code
    parser = Parser(prog="pymagpie", description="MagpieTTS speech synthesis on ggml.", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("verb", nargs="?")
    args = parser.parse_args(arguments)
    if args.verb is not None:
        raise ValueError(f"unknown command {args.verb!r}; there are: {', '.join(VERBS)}")
    if args.version:
        print(_version())
    elif args.help:
        print(_overview())
    else:
        print(_overview(), file=sys.stderr)
        return 2
    return 0


def _overview() -> str:
    lines = ["usage: pymagpie COMMAND [options]", "       pymagpie --version", "", "commands:"]
    lines += [f"  {verb:<11} {verb_module(verb).HELP}" for verb in VERBS]
    return "\n".join([*lines, "", "pymagpie COMMAND --help shows the options of a command."])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    import pymagpie

    try:
        from pymagpie import ggml

        return f"pymagpie {pymagpie.__version__} (ggml {ggml.ggml_version()}, ggml-python {version('ggml-python')})"
    except (ImportError, PackageNotFoundError):
        return f"pymagpie {pymagpie.__version__} (ggml-python is not installed)"


def _configure_logging(args: argparse.Namespace) -> None:
    """Show the library's log on standard error: warnings, with --verbose more, with --quiet errors only."""
    logger = logging.getLogger("pymagpie")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("pymagpie: %(levelname)s: %(message)s"))
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(
        logging.INFO
        if getattr(args, "verbose", False)
        else logging.ERROR
        if getattr(args, "quiet", False)
        else logging.WARNING
    )


def _exit_on_sigterm() -> None:
    """Leave through the ``finally`` blocks at SIGTERM, so that no temporary file stays."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread: main() was called by a program that minds its own signals
        pass


def _report(message: str, kind: str, code: int, arguments: list[str]) -> int:
    message = " ".join(message.split())
    if "--json" in arguments:
        line = json.dumps({"error": {"message": message, "type": kind, "exit_code": code}})
    else:
        line = f"pymagpie: error: {message}" if code != 130 else "pymagpie: interrupted"
    try:
        print(line, file=sys.stderr)
    except OSError:  # nobody is listening
        pass
    return code


def _silence_stdout() -> int:
    """Point standard output at nothing, so that the interpreter's last flush does not complain."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return 0

"""The command line: `eductor passes`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from eductor import __version__
from eductor.errors import EductorError, UnknownName
from eductor.observe import manual, table
from eductor.pipeline.base import STAGES
from eductor.pipeline.registry import Registry


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a user's mistake is one line on stderr and the exit code 2."""
    args = _parser().parse_args(argv)
    try:
        _passes(args)
    except EductorError as error:
        print(f"eductor: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eductor", description="A graph compiler for PyTorch that shows its work.")
    parser.add_argument("--version", action="version", version=f"eductor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    passes = commands.add_parser(
        "passes", help="list the passes in the order in which they run, or show the page of one"
    )
    passes.add_argument("name", nargs="?", help="a pass: shows its contract, and its examples before and after")
    passes.add_argument("--stage", choices=STAGES, help="only this stage")
    form = passes.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as a list of objects")
    form.add_argument("--markdown", action="store_true", help="as Markdown")
    return parser


def _passes(args: argparse.Namespace) -> None:
    registry = Registry.default()
    rows = manual.rows(registry, args.stage)
    if args.name is not None:
        called = {s.address for s in registry.steps() if s.is_called(args.name)}
        rows = [r for r in rows if r["address"] in called]
        if not rows:
            raise UnknownName("pass", args.name, [s.name for s in registry.steps() if args.stage in (None, s.stage)])
    if args.json:
        print(json.dumps(rows, indent=2))
    elif args.name is not None:
        _show(manual.page(registry, args.name), raw=args.markdown)
    else:
        header = ("stage", "name", "on", "numerics", "purpose")
        cells = [(r["stage"], r["name"], "yes" if r["on"] else "-", r["numerics"], r["purpose"]) for r in rows]
        print(table.as_markdown(header, cells) if args.markdown else table.as_text(header, cells))


def _show(markdown: str, *, raw: bool) -> None:
    """Rendered where somebody reads it in a terminal and rich is installed; as it is otherwise."""
    if raw or not sys.stdout.isatty() or find_spec("rich") is None:
        print(markdown)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(markdown))

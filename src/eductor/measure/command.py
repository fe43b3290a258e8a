"""The command `eductor bench`."""

from __future__ import annotations

import argparse
import json
import sys

import torch

from eductor.errors import BadOption
from eductor.measure.bench import KINDS, Bench, Measured
from eductor.measure.bench_text import as_page, as_table
from eductor.observe.explain.progress import Progress
from eductor.observe.scripts.output_files import check_can_write, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "source",
        nargs="?",
        metavar="FILE.py[:model]",
        help="a file with a dictionary MODELS of functions that take a device and return a model and its arguments; "
        "default: the built-in models",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", metavar="MODEL,…", help="only these models")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="KIND,…", help=f"of {', '.join(KINDS)}")
    parser.add_argument(
        "--way",
        action="append",
        default=[],
        metavar="WAY",
        help="only this way beside eager, inductor and eductor, as `inductor, reduce-overhead`; may be repeated",
    )
    parser.add_argument("--rounds", type=int, default=20, help="measured steps of each way, of which the median counts")
    parser.add_argument(
        "--jobs", type=int, default=1, help="first steps that run in parallel, and slow each other down; default: 1"
    )
    parser.add_argument("--no-compile-times", action="store_true", help="leave out the first steps, which take longest")
    parser.add_argument("--json", metavar="FILE", help="all figures, as JSON")
    parser.add_argument("--html", metavar="FILE", help="a page with plots")


def run(args: argparse.Namespace) -> int:
    """Measures, shows progress, prints the table, writes files."""
    kinds = [kind for kind in args.kinds.split(",") if kind]
    if not kinds or not set(kinds) <= set(KINDS):
        raise BadOption(f"--kinds {args.kinds}: it must be one or more of {', '.join(KINDS)}.")
    if args.rounds < 1:
        raise BadOption(f"--rounds {args.rounds}: it must be 1 or more.")
    if args.jobs < 1:
        raise BadOption(f"--jobs {args.jobs}: it must be 1 or more.")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise BadOption("--device cuda: there is no CUDA device that torch can use here; leave it out for the CPU.")
    check_can_write(args.json)
    check_can_write(args.html)
    progress = Progress(sys.stderr)
    only = [name for name in args.only.split(",") if name]
    bench = Bench(
        args.source,
        args.device,
        only,
        kinds,
        args.rounds,
        not args.no_compile_times,
        args.way,
        args.jobs,
        say=progress.say,
    )

    def keep(measured: Measured) -> None:
        if args.json:
            write(args.json, json.dumps(measured.to_json(), indent=2))

    try:
        measured = bench.run(keep)
    finally:
        progress.clear()
    print(as_table(measured))
    if args.json:
        print(f"{args.json}: all figures.")
    if args.html:
        print(f"{write(args.html, as_page(measured))}: open it in a browser.")
    return 0

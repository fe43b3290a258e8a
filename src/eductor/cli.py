"""The command line: `eductor passes | explain | diff | verify | bisect | why-not | bench | cache`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from eductor.cache import Store
from eductor.errors import BadOption, BadScript, EductorError, NothingWrong, NotVerified, UnknownName
from eductor.measure import command as bench
from eductor.observe import table
from eductor.observe.diff.record_diff import as_terminal, compare_records, read_record
from eductor.observe.diff.record_diff_html import as_page
from eductor.observe.explain.explain import Explanation
from eductor.observe.explain.memory_curve import check_can_draw
from eductor.observe.explain.progress import Progress
from eductor.observe.explain.why_not import Inquiry
from eductor.observe.manual import manual
from eductor.observe.manual.manual_page import page
from eductor.observe.report import explorer
from eductor.observe.scripts.interception import CompiledFunction
from eductor.observe.scripts.output_files import check_can_write, write
from eductor.observe.scripts.run_script import run_script
from eductor.observe.scripts.script_checks import bisect_script, verify_script
from eductor.observe.verify.verify import Report
from eductor.pipeline import STAGES, Recorder, Registry
from eductor.verification.verifier import Verifier
from eductor.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a user's mistake is one line on stderr and the exit code 2."""
    given = list(sys.argv[1:] if argv is None else argv)
    # Arguments after `--` belong to the script; argparse must not parse them.
    own, script = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    args = _parser().parse_args(own)
    args.arguments = script
    try:
        return COMMANDS[args.command](args)
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
    form.add_argument("--json", action="store_true", help="as a JSON list of objects")
    form.add_argument("--markdown", action="store_true", help="as Markdown")
    explain = _script_parser(commands, "explain", "run a script, and show what each pass did to each of its graphs")
    form = explain.add_mutually_exclusive_group()
    form.add_argument("--diff", metavar="PASS", help="the graphs before and after this pass")
    form.add_argument("--saved", action="store_true", help="what each graph saves for its backward, and why")
    form.add_argument("--json", action="store_true", help="everything, in the schema of docs/explain_json.md")
    explain.add_argument(
        "--backend",
        choices=("eductor", "inductor"),
        default="eductor",
        help="inductor: compile with stock Inductor instead, and show what its passes do",
    )
    explain.add_argument("--verify", action="store_true", help="also check each pass, and report what was found")
    explain.add_argument("--html", metavar="FILE", help="the whole report, as one interactive HTML file")
    explain.add_argument(
        "--chrome-trace", metavar="FILE", help="when each stage and pass ran, for Perfetto or chrome://tracing"
    )
    explain.add_argument(
        "--memory-curve",
        nargs="?",
        const="",
        metavar="FILE.png",
        help="memory over time in each graph, as a table, or plotted to a file; with --json, also in the JSON",
    )
    diff = commands.add_parser("diff", help="compare two records of `eductor explain SCRIPT.py --json`")
    for name in ("a", "b"):
        diff.add_argument(
            name, metavar=f"{name.upper()}.json", help="a record of one version, set of options or backend"
        )
    diff.add_argument("--html", metavar="FILE", help="write an HTML file instead of printing")
    verify = _script_parser(commands, "verify", "run a script, and check each pass and each compiled function in it")
    verify.add_argument("--strict", action="store_true", help="stop at the first failure")
    bisect = _script_parser(commands, "bisect", "run a script, and find the rewrite that makes it wrong")
    bisect.add_argument(
        "--repeats", type=_positive, default=1, help="runs per trial, for a failure that is not deterministic"
    )
    why = _script_parser(commands, "why-not", "run a script, and show why a pass, or one of its rules, did not match")
    why.add_argument("asked", metavar="PASS[:RULE]", help="a pass by its name or address, and one of its rules")
    why.add_argument("--json", action="store_true", help="as JSON")
    bench.add_arguments(
        commands.add_parser("bench", help="run models in eager, with Inductor and with Eductor, side by side")
    )
    cache = commands.add_parser("cache", help="show where compiled graphs are cached on disk, how many, and their size")
    cache.add_argument("--clear", action="store_true", help="remove all entries")
    return parser


def _script_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help: str
) -> argparse.ArgumentParser:
    """A subcommand that runs a script and inspects what it compiles."""
    parser = commands.add_parser(name, help=help, epilog="Arguments after `--` are passed to the script.")
    parser.add_argument("where", metavar="SCRIPT.py[:function]", help="a script, or a function without arguments in it")
    return parser


def _cache(args: argparse.Namespace) -> int:
    store = Store.default()
    if args.clear:
        print(f"{store.folder}: {store.clear()} entries removed.")
        return 0
    entries = store.entries()
    size = sum(stat.st_size for _, stat in entries) / 2**20
    print(f"{store.folder}: {len(entries)} entries, {size:.2f} MiB of at most {store.limit >> 20}.")
    return 0


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _passes(args: argparse.Namespace) -> int:
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
        _show(page(registry, args.name), raw=args.markdown)
    else:
        header = ("stage", "name", "on", "numerics", "purpose")
        cells = [(r["stage"], r["name"], "yes" if r["on"] else "-", r["numerics"], r["purpose"]) for r in rows]
        print(table.as_markdown(header, cells) if args.markdown else table.as_text(header, cells))
    return 0


def _explain(args: argparse.Namespace) -> int:
    wants_curve = args.memory_curve is not None or args.html is not None
    recorder = Recorder(keep_graphs=True, wants_curve=wants_curve)
    explanation = Explanation(recorder, verifier=Verifier() if args.verify else None)
    progress = Progress(sys.stderr)
    if args.memory_curve:
        check_can_draw(args.memory_curve)
    for file in (args.html, args.chrome_trace):
        check_can_write(file)
    if args.html:
        explorer()
    names: list[str] = []
    takes_stock = args.backend == "inductor"
    if takes_stock and (args.verify or args.memory_curve is not None):
        raise BadOption(
            "--verify and --memory-curve need Eductor's passes and partitioner: leave out --backend inductor."
        )

    def compiled(found: CompiledFunction) -> Callable[..., object]:
        names.append(found.name)
        compile = explanation.compile_with_stock if takes_stock else explanation.compile
        return compile(found, progress)

    with _running(args, progress, lambda: explanation if explanation.graphs else None), explanation.watching():
        run_script(args.where, compiled, args.arguments, takes_stock=takes_stock)
    if not explanation.graphs:
        raise BadScript(
            f"{args.where} compiles {', '.join(names)}, but calls none of them: call what you want to inspect."
        )
    if args.json:
        print(json.dumps(explanation.to_json(), indent=2))
    elif text := _as_text(explanation, args):
        print(text)
    _write(explanation, args, progress)
    if args.memory_curve and explanation.memory_curve():
        explanation.draw_memory_curve().savefig(args.memory_curve)
    return 0


@contextlib.contextmanager
def _running(args: argparse.Namespace, progress: Progress, so_far: Callable[[], object | None]) -> Iterator[None]:
    """While a script runs: keeps what it prints out of the JSON; if it fails, shows what was compiled so far."""
    try:
        with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
            yield
    except BadScript:
        if not args.json and (found := so_far()) is not None:
            print(found)
        raise
    finally:
        progress.clear()


def _as_text(explanation: Explanation, args: argparse.Namespace) -> str:
    """The parts that the options select, or the whole explanation."""
    parts = [explanation.diff(args.diff)] if args.diff is not None else []
    parts += _by_graph(explanation.explain_saved()) if args.saved else []
    parts += _by_graph(explanation.memory_curve()) if args.memory_curve is not None else []
    return "\n\n".join(parts) or ("" if args.html or args.chrome_trace else str(explanation))


def _write(explanation: Explanation, args: argparse.Namespace, progress: Progress) -> None:
    """Writes the requested files, and prints their paths."""
    if args.html:
        progress.say(f"writing {args.html}")
        written = write(args.html, explanation.to_html())
        progress.clear()
        print(f"{written}: open it in a browser.", file=sys.stderr if args.json else sys.stdout)
    if args.chrome_trace:
        written = write(args.chrome_trace, json.dumps(explanation.to_chrome_trace()))
        print(f"{written}: open it in https://ui.perfetto.dev.", file=sys.stderr if args.json else sys.stdout)


def _by_graph(values: Mapping[int, object]) -> list[str]:
    parts = [f"graph {graph}\n\n{value}" for graph, value in values.items()]
    return parts or ["No graph has a backward: nothing is saved."]


def _diff(args: argparse.Namespace) -> int:
    check_can_write(args.html)
    names = (Path(args.a).stem, Path(args.b).stem)
    diff = compare_records(read_record(args.a), read_record(args.b), names if names[0] != names[1] else ("A", "B"))
    if args.html:
        print(f"{write(args.html, as_page(diff))}: open it in a browser.")
    else:
        print(as_terminal(diff))
    return 0


def _verify(args: argparse.Namespace) -> int:
    """Returns 1 if any check fails."""
    progress, reports = Progress(sys.stderr), list[Report]()
    try:
        verify_script(args.where, args.arguments, progress, reports, strict=args.strict)
    except NotVerified:
        return 1
    finally:
        progress.clear()
        for report in reports:
            print(report)
    return 0 if all(report.ok for report in reports) else 1


def _bisect(args: argparse.Namespace) -> int:
    """Returns 1 if nothing fails."""
    progress = Progress(sys.stderr)
    try:
        culprit = bisect_script(args.where, args.arguments, progress, args.repeats)
    except NothingWrong as right:
        print(right)
        return 1
    finally:
        progress.clear()
    print(culprit)
    return 0


def _why_not(args: argparse.Namespace) -> int:
    inquiry, progress = Inquiry(args.asked), Progress(sys.stderr)
    with _running(args, progress, lambda: inquiry if inquiry.answers else None):
        run_script(args.where, lambda found: inquiry.compile(found, progress), args.arguments)
    if not inquiry.explanation.graphs:
        raise BadScript(f"{args.where} calls nothing that it compiles: call what you want to inspect.")
    inquiry.finished()
    print(json.dumps(inquiry.to_json(), indent=2) if args.json else inquiry)
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "passes": _passes,
    "explain": _explain,
    "diff": _diff,
    "verify": _verify,
    "bisect": _bisect,
    "why-not": _why_not,
    "bench": bench.run,
    "cache": _cache,
}


def _show(markdown: str, *, raw: bool) -> None:
    """Prints Markdown; rendered if stdout is a terminal and rich is installed."""
    if raw or not sys.stdout.isatty() or find_spec("rich") is None:
        print(markdown)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(markdown))

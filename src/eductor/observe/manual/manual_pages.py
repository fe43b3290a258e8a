"""Writes the manual of the passes, a page per pass: `python -m eductor.observe.manual.manual_pages docs/passes`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from eductor.observe.explain.progress import Progress
from eductor.observe.manual.manual import rows
from eductor.observe.manual.manual_page import home_of, link, page_of
from eductor.observe.table import as_markdown
from eductor.pipeline.base import NUMERICS, STAGES, Stage
from eductor.pipeline.registry import Registry, Step

ABOUT: dict[Stage, tuple[str, str]] = {
    "pre_grad": (
        "before autograd",
        "These passes work on the graph as Dynamo captured it: functions, methods and keywords as the author spelled "
        "them, with views and writes. Autograd differentiates their result, so strides, aliases and gradients must stay "
        "those of eager. [More about this stage](../../before_autograd.md).",
    ),
    "joint": (
        "forward and backward together",
        "These passes work on one functional graph of ATen operators, which computes the outputs and the gradients. "
        "They see values that both sides use, such as the mask of a dropout, in forward and backward.",
    ),
    "partition": (
        "between the choice of what is saved and the split",
        "These passes work on the joint graph once it is chosen what the forward saves for the backward. What they leave is "
        "split into the two graphs.",
    ),
    "post_grad": (
        "forward and backward, separately",
        "These passes work on the forward graph and then on the backward graph, after the partitioner decided what is "
        "saved between the two. Their result is cached on disk.",
    ),
    "lower": (
        "what the engine needs",
        "These passes work on a copy of each final graph, directly before the engine makes kernels of it. Their order "
        "belongs to the engine: these are the passes of the engine `inductor`. Those that it cannot do without are neither "
        "dropped nor limited. [How an engine brings others](../../bring_your_own_backend.md).",
    ),
}


def pages(registry: Registry, progress: Progress | None = None) -> dict[str, str]:
    """All pages by path; the examples run with one thread, as some passes decide by cost."""
    homes = dict.fromkeys((home_of(registry, step), step.name) for step in registry.steps())
    found = {"index.md": _overview(), **{f"{stage}/index.md": _list(registry, stage) for stage in STAGES}}
    with _one_thread():
        for number, (stage, name) in enumerate(homes, 1):
            if progress is not None:
                progress.say(f"page {number} of {len(homes)}: {stage}/{name}")
            found[f"{stage}/{name}.md"] = page_of(registry, stage, name)
    return found


def write(registry: Registry, folder: Path) -> None:
    """Writes all pages, and removes those of passes that no longer exist."""
    progress = Progress(sys.stderr)
    found = pages(registry, progress)
    progress.clear()
    for stage in STAGES:
        for old in (folder / stage).glob("*.md"):
            if f"{stage}/{old.name}" not in found:
                old.unlink()
    for place, text in found.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)


def _overview() -> str:
    stages = "\n".join(f"- [{stage}]({stage}/index.md): {ABOUT[stage][0]}" for stage in STAGES)
    numerics = [(f"`{name}`", meaning) for name, meaning in NUMERICS.items()]
    return (
        "# The passes\n\nA page per pass, generated from the code: its contract, what it does to examples and what it refuses, "
        "by running it, and its place in the order. `eductor passes NAME` prints the same page in a terminal. The lists show "
        "the passes in the order in which they run:\n\n"
        f"{stages}\n\n"
        "## What a contract says about numerics\n\n"
        f"{as_markdown(('numerics', 'meaning'), numerics)}\n\n"
        'With `verify="each"` every pass is held to this while your model is compiled: see '
        "[Find a wrong rewrite](../find_a_wrong_rewrite.md).\n\n"
        "## Switch them on and off\n\n"
        '```python\neductor.compile(model, disable=["pad_mm"], enable=["B2B_GEMM_PASS"])\n'
        'eductor.compile(model, pipeline="joint(remove_noop_ops, pad_mm(force=True))")\n```\n\n'
        "The first disables one pass and enables one that is off by default. The second runs only these two, one of them "
        "with an option. A place for your own passes is a *slot*; [Write a pass](../write_a_pass.md) explains how to fill "
        "it.\n"
    )


def _list(registry: Registry, stage: Stage) -> str:
    """The steps of a stage in order; Markdown numbers them, so that adding one changes one line."""
    title, about = ABOUT[stage]
    lines = [
        f"1. {link(registry, step)}{_kind(step)}: {row['purpose']} *{row['reason'][:1].upper()}{row['reason'][1:]}.*"
        for step, row in zip(registry.order(stage), rows(registry, stage), strict=True)
    ]
    intro = (
        "The steps in the order in which they run: the numerics of each, what it does and, in italics, why it is there."
    )
    return f"# {stage}: {title}\n\n{about}\n\n{intro}\n\n" + "\n".join(lines) + "\n"


def _kind(step: Step) -> str:
    if step.is_slot:
        return " (slot)"
    p = step.load()
    return f" ({p.contract.numerics}{'' if p.on else ', off by default'})"


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python -m eductor.observe.manual.manual_pages FOLDER, which is docs/passes in this repository."
        )
    write(Registry.built_in(), Path(sys.argv[1]))

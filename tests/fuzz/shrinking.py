"""The least program that still differs: lines, outputs, options and modules are left out one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from .program import Line, Random


def shrunk(program: Random, fails: Callable[[Random], bool], most: int = 300) -> Random:
    """The smallest program found that still fails; tries at most so many."""
    while True:
        for smaller in smaller_ones(program):
            most -= 1
            if most < 0:
                return program
            if fails(smaller):
                program = smaller
                break
        else:
            return program


def smaller_ones(program: Random) -> Iterator[Random]:
    for i in reversed(range(len(program.lines))):
        yield from _without(program, i)
    for i in range(len(program.outputs)):
        if len(program.outputs) > 1:
            yield replace(program, outputs=program.outputs[:i] + program.outputs[i + 1 :]).used()
    for i in range(len(program.options)):
        yield replace(program, options=program.options[:i] + program.options[i + 1 :])
    for plainer in (
        replace(program, autocast=False),
        replace(program, training=False),
        replace(program, dtype="torch.float32"),
    ):
        if plainer != program:
            yield plainer
    for i, line in enumerate(program.inputs):
        for made in _plainer_inputs(line.expression):
            given = (*program.inputs[:i], Line(line.result, made), *program.inputs[i + 1 :])
            yield replace(program, inputs=given).used()


def _plainer_inputs(made: str) -> Iterator[str]:
    """An input without its gradient, or without what changes its strides."""
    if ".requires_grad_()" in made:
        yield made.replace(".requires_grad_()", "")
    found = re.match(r"tensor\([^)]*\)", made)
    if found and found[0] != made.replace(".requires_grad_()", ""):
        yield found[0]


def _without(program: Random, place: int) -> Iterator[Random]:
    """A program without a line: an operand of it takes its place, or what reads it goes, too."""
    gone, rest = program.lines[place], [*program.lines[:place], *program.lines[place + 1 :]]
    if not gone.result:
        yield replace(program, lines=tuple(rest)).used()
        return
    for operand in sorted(gone.reads):
        lines = tuple(Line(line.result, _renamed(line.expression, gone.result, operand)) for line in rest)
        outputs = tuple(dict.fromkeys(operand if name == gone.result else name for name in program.outputs))
        yield replace(program, lines=lines, outputs=outputs).used()
    lost = {gone.result}
    kept = []
    for line in rest:
        if lost & line.reads:
            lost |= {line.result} - {""}
        else:
            kept.append(line)
    outputs = tuple(name for name in program.outputs if name not in lost)
    if outputs:
        yield replace(program, lines=tuple(kept), outputs=outputs).used()


def _renamed(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, text)

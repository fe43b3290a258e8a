"""The line below the cursor: what a person sees, whatever the program writes before, meanwhile and afterwards."""

from __future__ import annotations

import io
import termios

import pytest

from eductor.progress import Line
from progress.terminal import Screen, pseudo_terminal


@pytest.fixture
def screen():
    return Screen(columns=40, rows=4)


@pytest.fixture
def line(screen, monkeypatch):
    """A line on the screen."""

    class Stream(io.StringIO):
        def write(self, text):
            screen.write(text)

    monkeypatch.setenv("COLUMNS", "40")
    return Line(Stream())


def test_an_unfinished_line_goes_on(screen, line):
    screen.write("compiling ... ")
    line.show("first")
    line.show("2nd")
    assert screen.lines == ["compiling ...", "2nd"]
    line.clear()
    screen.write("done\nnext")
    assert screen.lines == ["compiling ... done", "next"]


def test_a_bar_is_rewritten_in_its_place(screen, line):
    for step in range(3):
        screen.write(f"\rstep {step}")
        line.show("engine")
        assert screen.lines == [f"step {step}", "engine"]
        line.clear()
    assert screen.lines == ["step 2"]


def test_it_scrolls_once_on_the_last_row(screen, line):
    screen.write("1\n2\n3\nstep 4")
    for text in ("engine", "kernels"):
        line.show(text)
        assert screen.lines == ["2", "3", "step 4", text]
    line.clear()
    screen.write(" of 4\n")
    assert screen.lines == ["2", "3", "step 4 of 4"]


@pytest.mark.parametrize("rows", [4, 24])
def test_messages_in_between_leave_nothing_of_it(rows, screen, line):
    screen.rows = screen.rows[:1] * rows
    for number in range(5):
        line.show(f"engine, {number} s")
        screen.write(f"{number}\n")
    line.show("engine, 5 s")
    assert screen.lines == [*map(str, range(5)), "", "engine, 5 s"][-rows:]
    line.clear()
    assert screen.lines == list(map(str, range(5)))[2 - rows :]


def test_the_last_column_stays_free(screen, line):
    line.show("x" * 50)
    assert screen.lines == ["", "x" * 39]


def test_the_width_is_that_of_its_own_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    with pseudo_terminal() as terminal:
        termios.tcsetwinsize(terminal.end, (24, 30))
        with open(terminal.end, "w", closefd=False) as stream:
            Line(stream).show("x" * 100)
        assert terminal.finish().count("x") == 29


def test_a_line_is_on_screen_until_it_is_cleared(line):
    line.show("engine")
    assert line in Line.on_screen
    line.clear()
    assert line not in Line.on_screen

"""Equality, alignment, hashes, snapshots."""

from __future__ import annotations

import copy
import subprocess
import sys

import torch

from eductor.graph import (
    Snapshot,
    align,
    capture,
    first_difference,
    is_equal,
    node_hashes,
    region_hash,
    structural_hash,
)

aten = torch.ops.aten


def graph_of(fn, *shapes):
    return capture(fn, [torch.randn(*s) for s in shapes or [(2, 3)]], "aten").graph


def test_names_do_not_matter_but_all_else_does():
    a = graph_of(lambda x: x.sin() + 1)
    renamed = copy.deepcopy(a)
    for i, node in enumerate(renamed.nodes):
        node._rename(f"other_{i}")
    assert is_equal(a, renamed)
    for other in (
        lambda x: x.cos() + 1,
        lambda x: x.sin() + 2,
        lambda x: x.sin() + 1.0,
        lambda x: x.sin(),
        lambda x: 1 + x.sin() + x,
    ):
        assert not is_equal(a, graph_of(other))
    assert first_difference(a, graph_of(lambda x: x.cos() + 1)).startswith("`sin = torch.ops.aten.sin.default(arg0_1)`")
    assert "only the first graph has" in first_difference(a, cut(a))


def cut(graph):
    shorter = copy.deepcopy(graph)
    output = shorter.output_node()
    shorter.erase_node(output)
    return shorter


def test_signs_of_zero_and_nans():
    assert is_equal(graph_of(lambda x: x + float("nan")), graph_of(lambda x: x + float("nan")))
    assert not is_equal(graph_of(lambda x: x + 0.0), graph_of(lambda x: x + -0.0))
    assert not is_equal(graph_of(lambda x: x + 1), graph_of(lambda x: x + True))


def statuses(before, after):
    return [(p.before and p.before.name, p.after and p.after.name, p.status) for p in align(before, after)]


def test_alignment_by_name_and_by_structure():
    before = graph_of(lambda x: x.sin().clone() + 1)
    after = copy.deepcopy(before)
    clone = after.find_nodes(op="call_function", target=aten.clone.default)[0]
    clone.replace_all_uses_with(clone.args[0])
    after.erase_node(clone)
    assert statuses(before, after) == [
        ("arg0_1", "arg0_1", "same"),
        ("sin", "sin", "same"),
        ("clone", None, "removed"),
        ("add", "add", "changed"),
        ("output", "output", "same"),
    ]


def test_a_renamed_node_is_no_noise():
    before = graph_of(lambda x: x.sin().cos() + 1)
    after = copy.deepcopy(before)
    after.find_nodes(op="call_function", target=aten.sin.default)[0]._rename("sine")
    assert {status for _, _, status in statuses(before, after)} == {"same"}


def test_a_moved_node_is_moved():
    before = graph_of(lambda x: (x.sin(), x.cos(), x.tan()))
    after = copy.deepcopy(before)
    sin = after.find_nodes(op="call_function", target=aten.sin.default)[0]
    after.output_node().prepend(sin)
    assert [s for s in statuses(before, after) if s[2] != "same"] == [("sin", "sin", "moved")]


def test_added_nodes():
    before, after = graph_of(lambda x: x.sin()), graph_of(lambda x: x.sin().cos())
    assert (None, "cos", "added") in statuses(before, after)


def test_hashes_are_structural_and_the_same_in_every_process():
    a, b = graph_of(lambda x: x.sin() + 1), graph_of(lambda y: y.sin() + 1)
    assert structural_hash(a) == structural_hash(b)
    assert structural_hash(a) != structural_hash(graph_of(lambda x: x.sin() + 2))
    assert structural_hash(a) != structural_hash(graph_of(lambda x: x.sin() + 1, (2, 4)))
    code = (
        "import torch; from eductor.graph import capture, structural_hash;"
        "print(structural_hash(capture(lambda x: x.sin() + 1, [torch.randn(2, 3)], 'aten').graph))"
    )
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == structural_hash(a)


def test_repeated_regions_have_equal_hashes():
    graph = graph_of(lambda x: (x.sin() + 1).sin() + 1)
    calls = [n for n in graph.nodes if n.op == "call_function"]
    assert region_hash(calls[:2]) == region_hash(calls[2:])
    assert region_hash(calls[:2]) != region_hash(calls[1:3])
    hashes = node_hashes(graph)
    assert hashes[calls[0]] != hashes[calls[2]]


def test_a_snapshot_sees_every_change_and_brings_the_graph_back():
    def changes(graph):
        sin, add = (n for n in graph.nodes if n.op == "call_function")
        yield lambda: setattr(add, "args", (sin, 2))
        yield lambda: setattr(sin, "target", aten.cos.default)
        yield lambda: graph.output_node().prepend(sin)
        yield lambda: (add.replace_all_uses_with(sin), graph.erase_node(add))
        yield lambda: add.kwargs.__class__ and setattr(add, "kwargs", {"alpha": 2})

    for i in range(5):
        module = capture(lambda x: x.sin() + 1, [torch.randn(2, 3)], "aten")
        before = Snapshot(module.graph)
        assert before.is_same(module.graph)
        list(changes(module.graph))[i]()
        assert not before.is_same(module.graph), i
        before.restore(module)
        assert is_equal(module.graph, capture(lambda x: x.sin() + 1, [torch.randn(2, 3)], "aten").graph)
        x = torch.randn(2, 3)
        assert torch.equal(module(x), x.sin() + 1)
        assert all("val" in n.meta for n in module.graph.nodes if n.op != "output")


def test_meta_alone_is_no_change_but_is_brought_back():
    module = capture(lambda x: x.sin() + 1, [torch.randn(2, 3)], "aten")
    before = Snapshot(module.graph)
    sin = next(n for n in module.graph.nodes if n.op == "call_function")
    value = sin.meta.pop("val")
    assert before.is_same(module.graph)
    before.restore(module)
    assert next(n for n in module.graph.nodes if n.op == "call_function").meta["val"] is value

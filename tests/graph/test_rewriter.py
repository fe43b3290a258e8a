"""The rewriter and the view: edits, events, provenance, indices that stay true."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from eductor import BadGraph
from eductor.graph import GraphView, Rewriter, capture, effect_of, is_equal, provenance_of, value_of

aten = torch.ops.aten


def editing(fn, *inputs, dialect="aten") -> tuple[GraphModule, GraphView, Rewriter]:
    module = capture(fn, inputs or [torch.randn(2, 3)], dialect)
    view = GraphView(module)
    rewriter = Rewriter(view, "joint/test")
    view.scope = rewriter
    return module, view, rewriter


def test_find_reads_every_spelling():
    def program(x, y):
        a = torch.cat([x, y], 1)
        b = torch.concat((x, y), axis=-1)
        c = torch.add(x, 2) + x.add(y)
        c += 1
        return a, b, F.relu(c), c.relu(), torch.relu(c)

    _, view, _ = editing(program, torch.randn(2, 3), torch.randn(2, 3), dialect="torch")
    assert len(list(view.find(aten.cat))) == 2
    assert len(list(view.find(aten.add))) == 3
    assert len(list(view.find(aten.add_))) == 1
    assert len(list(view.find(aten.relu))) == 3
    assert len(list(view.find(aten.relu, aten.cat))) == 5
    assert list(view.find(aten.mul)) == []


def test_find_by_overload():
    _, view, _ = editing(lambda x: x.sum() + x.sum(1).sum())
    assert len(list(view.find(aten.sum))) == 3
    assert len(list(view.find(aten.sum.dim_IntList))) == 1
    assert len(list(view.find(aten.sum.default, aten.add))) == 3


def test_find_follows_the_order_of_the_graph_and_sees_new_nodes():
    module, view, rewrite = editing(lambda x: x.sin() + x.cos().sin())
    seen = []
    for node in view.find(aten.sin):
        seen.append(node.name)
        if len(seen) == 1:
            cos = next(view.find(aten.cos))
            rewrite.replace(cos, aten.sin, *cos.args)
    assert len(seen) == 3
    module.graph.lint()


def test_a_pass_that_never_settles_is_stopped():
    _, view, rewrite = editing(lambda x: x.sin())

    def run():
        for node in view.find(aten.sin):
            rewrite.replace(node, aten.sin, *node.args)

    with pytest.raises(BadGraph, match="does not terminate"):
        run()


def test_new_nodes_are_full_citizens():
    module, view, rewrite = editing(lambda x: torch.sin(x) + 1, dialect="torch")
    (sin,) = view.find(aten.sin)
    trace = sin.stack_trace
    cos = rewrite.replace(sin, aten.cos, *sin.args)
    rewrite.finish()
    assert cos.target is aten.cos.default
    assert value_of(cos).shape == (2, 3)
    assert cos.stack_trace == trace
    made = provenance_of(cos)
    assert made.address == "joint/test@0"
    assert made.sources == ("sin",)
    assert "test_rewriter.py" in made.line
    again = rewrite.replace(cos, aten.tan, *cos.args)
    assert provenance_of(again).origins == (made,)
    x = torch.randn(2, 3)
    module.recompile()
    assert torch.equal(module(x), x.tan() + 1)


def test_replacing_by_another_shape_updates_users():
    _, view, rewrite = editing(lambda x: x.sin().cos().tan())
    (sin,) = view.find(aten.sin)
    rewrite.replace(sin, aten.sum, sin.args[0], [0])
    rewrite.finish()
    assert value_of(next(view.find(aten.tan))).shape == (3,)


def test_orphans_go_and_effects_stay():
    module, view, rewrite = editing(lambda x: torch.rand_like(x.sin()).cos() + x.exp().tan())
    for node in list(view.find(aten.cos, aten.tan)):
        rewrite.replace(node, module.graph.find_nodes(op="placeholder")[0])
    rewrite.finish()
    left = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    assert left == ["aten.sin.default", "aten.rand_like.default", "aten.add.Tensor"]


def test_matches_and_events():
    _, view, rewrite = editing(lambda x: x.clone().sin() + x.clone().cos())
    for node in view.find(aten.clone):
        with rewrite.rule("copy"):
            rewrite.replace(node, node.args[0])
    rewrite.finish()
    assert [m.address for m in rewrite.matches] == ["joint/test:copy@0", "joint/test:copy@1"]
    assert [e.kind for e in rewrite.matches[0].events] == ["replaced", "erased"]
    assert rewrite.matches[1].node == "clone_1"


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_limit_stops_after_so_many_matches(limit):
    module = capture(lambda x: x.clone().sin() + x.clone().cos() + x.clone(), [torch.randn(2)], "aten")
    view = GraphView(module)
    view.scope = rewrite = Rewriter(view, "joint/test", limit=limit)
    for node in view.find(aten.clone):
        rewrite.replace(node, node.args[0])
    rewrite.finish()
    assert len(rewrite.matches) == limit
    assert len(list(GraphView(module).find(aten.clone))) == 3 - limit


def test_rejects_keep_their_reason():
    _, view, rewrite = editing(lambda x: x.sin())
    for node in view.find(aten.sin):
        rewrite.reject("it is Monday", node)
    assert [(r.reason, r.nodes) for r in rewrite.rejects] == [("it is Monday", ("sin",))]
    assert not rewrite.matches


def test_a_note_belongs_to_the_match_at_hand():
    _, view, rewrite = editing(lambda x: x.clone().sin() + x.clone())
    with pytest.raises(BadGraph, match="no edit was made yet"):
        rewrite.note("too early")
    for node in view.find(aten.clone):
        rewrite.replace(node, node.args[0])
        if node.name == "clone":
            rewrite.note("it is Monday")
    assert [m.note for m in rewrite.matches] == ["it is Monday", ""]


def test_order_is_checked():
    _, view, rewrite = editing(lambda x: x.sin().cos())
    (sin,), (cos,) = view.find(aten.sin), view.find(aten.cos)
    with pytest.raises(BadGraph, match="defined only after"):
        rewrite.insert(aten.neg, cos, before=sin)
    with pytest.raises(BadGraph, match="defined only after"):
        rewrite.replace(sin, cos)
    with pytest.raises(BadGraph, match="cannot be called with these arguments"):
        rewrite.insert(aten.cat, before=cos)


def test_update_in_place_keeps_name_and_users_and_reindexes():
    _, view, rewrite = editing(lambda x: x.sin() + 1)
    (sin,) = view.find(aten.sin)
    rewrite.update(sin, target=aten.cos.default)
    rewrite.finish()
    assert sin.name == "sin"
    assert list(view.find(aten.sin)) == []
    assert list(view.find(aten.cos)) == [sin]


def test_move_and_erase_keep_the_view_true():
    module, view, rewrite = editing(lambda x: (x.sin(), x.cos()))
    (sin,), (cos,) = view.find(aten.sin), view.find(aten.cos)
    rewrite.move(cos, before=sin)
    assert [n.name for n in module.graph.nodes][1:3] == ["cos", "sin"]
    assert view.effects.of(cos).removable
    fresh = rewrite.insert(aten.neg, sin, before=module.graph.output_node())
    assert view.effects.place(fresh) is fresh
    rewrite.erase(fresh)
    assert list(view.find(aten.neg)) == []


def test_effects_follow_edits():
    _, view, rewrite = editing(lambda x: x.clone().view(6) + 1)
    (clone,), (flat,) = view.find(aten.clone), view.find(aten.view)
    x = clone.args[0]
    assert view.effects.place(flat) is view.effects.place(clone)
    assert view.effects.place(flat) is not view.effects.place(x)
    rewrite.replace(clone, x)
    assert view.effects.place(flat) is view.effects.place(x)
    assert effect_of(flat).is_view


def test_an_untouched_graph_is_the_same_graph():
    module, view, rewrite = editing(lambda x: x.sin())
    other = capture(lambda x: x.sin(), [torch.randn(2, 3)], "aten")
    for _ in view.find(aten.sin):
        pass
    rewrite.finish()
    assert is_equal(module.graph, other.graph)


def test_what_autograd_saves_is_not_written_behind_its_back():
    """Eager multiplies a copy; with the original in its place, backward would find that written."""

    def program(x, w):
        inner = x.relu()
        outer = inner.relu()
        product = outer * w
        inner.add_(1)
        return product

    inputs = [torch.randn(3), torch.randn(3, requires_grad=True)]
    _, view, _ = editing(program, *inputs, dialect="torch")
    inner, outer = view.find(aten.relu)
    assert "autograd may have saved" in view.effects.may_alias(outer, inner).reason
    _, view, _ = editing(program, *(x.detach() for x in inputs), dialect="torch")
    inner, outer = view.find(aten.relu)
    assert view.effects.may_alias(outer, inner)


def test_a_view_is_not_dropped_across_a_change_of_geometry():
    def program(x):
        y = x + 0
        a = y.view(2, 2)
        a.t_()
        return y.sum(0), a + 1

    _, view, _ = editing(program, torch.randn(2, 2), dialect="torch")
    (flat,) = view.find(aten.view)
    assert "geometry" in view.effects.may_alias(flat, flat.args[0]).reason


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_piece_has_a_value_though_its_whole_was_written_since(mode):
    """Autograd does not let what was split be written; a new node that reads a piece stands in front of the write."""

    def program(x):
        y = x * 1
        with mode():
            piece, _ = y.chunk(2, 1)
        row = piece.sin()
        y.mul_(2)
        return row

    _, view, rewrite = editing(program, torch.randn(2, 4, requires_grad=True), dialect="torch")
    sin = next(view.find(aten.sin))
    new = rewrite.insert(aten.unsqueeze, sin.all_input_nodes[0], 0, before=sin)
    assert value_of(new).shape == (1, 2, 2)
    assert value_of(new).requires_grad

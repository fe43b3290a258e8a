"""A pass that raises, breaks the graph or lies is reported by its address and undone; the run goes on as if it were not there."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch.fx import Graph, Node
from toys import aten, graph_of, named, plain_tag, run, sin_to_cos, text_of

import eductor
from eductor.errors import EductorWarning, PassFailed
from eductor.graph import GraphView, Rewriter, is_equal, type_of, value_of
from eductor.pipeline import Pipeline, Recorder, graph_pass


def first_sine(graph: Graph) -> Node:
    return graph.find_nodes(op="call_function", target=aten.sin.default)[0]


# ------------------------------------------------------------------------------------------------- passes that go wrong


def raises_at_once(graph: GraphView, rewrite: Rewriter) -> None:
    """Raises before its first edit."""
    raise ValueError("I give up")


def raises_in_an_edit(graph: GraphView, rewrite: Rewriter) -> None:
    """Raises in the middle of an edit."""
    for node in graph.find(aten.sin):
        rewrite.insert(aten.cos, node.args[0], before=node)
        raise ValueError("I give up")


def raises_after_many(graph: GraphView, rewrite: Rewriter) -> None:
    """Raises when all is done."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, aten.cos, node.args[0])
    raise ValueError("I give up")


def erases_a_used_node(graph: GraphView, rewrite: Rewriter) -> None:
    """The rewriter does not let it."""
    rewrite.erase(first_sine(graph.graph))


def tears_out_a_used_node(graph: GraphView, rewrite: Rewriter) -> None:
    """Goes below torch.fx to erase what others use."""
    node = first_sine(graph.graph)
    node._remove_from_list()
    node._erased = True


def removes_the_output(graph: GraphView, rewrite: Rewriter) -> None:
    """Erases the output."""
    rewrite.erase(graph.output)


def adds_an_output(graph: GraphView, rewrite: Rewriter) -> None:
    """Adds a second one."""
    graph.graph.output(first_sine(graph.graph))


def returns_another_value(graph: GraphView, rewrite: Rewriter) -> None:
    """Returns something of another shape."""
    with graph.graph.inserting_before(graph.output):
        new = graph.graph.call_function(aten.sum.default, (graph.output.args[0],))
    graph.output.args = (new,)


def returns_twice(graph: GraphView, rewrite: Rewriter) -> None:
    """Returns its result two times."""
    rewrite.update(graph.output, args=((graph.output.args[0],) * 2,))


def drops_an_input(graph: GraphView, rewrite: Rewriter) -> None:
    """Erases an input that nobody uses."""
    for node in graph.graph.find_nodes(op="placeholder"):
        if not node.users:
            rewrite.erase(node)


def edits_behind_the_back(graph: GraphView, rewrite: Rewriter) -> None:
    """Edits with torch.fx alone."""
    first_sine(graph.graph).target = aten.cos.default


def edits_half_behind_the_back(graph: GraphView, rewrite: Rewriter) -> None:
    """Edits one node honestly, and another with torch.fx."""
    first, second, *_ = graph.graph.find_nodes(op="call_function", target=aten.sin.default)
    rewrite.replace(first, aten.cos, first.args[0])
    second.target = aten.cos.default


def erases_behind_the_back(graph: GraphView, rewrite: Rewriter) -> None:
    """Replaces a node honestly, and erases another with torch.fx."""
    _, second, third = graph.graph.find_nodes(op="call_function", target=aten.sin.default)
    new = rewrite.replace(second, aten.cos, second.args[0])
    third.replace_all_uses_with(new)
    graph.graph.erase_node(third)


def moves_behind_the_back(graph: GraphView, rewrite: Rewriter) -> None:
    """Changes the order with torch.fx."""
    node = first_sine(graph.graph)
    node.next.append(node)


def unsorts(graph: GraphView, rewrite: Rewriter) -> None:
    """Moves a node behind its user."""
    rewrite.move(first_sine(graph.graph), before=graph.output)


def changes_the_dtype(graph: GraphView, rewrite: Rewriter) -> None:
    """Computes in another precision, and forgets to come back."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, aten._to_copy, node.args[0], dtype=torch.float64)


def changes_the_shape(graph: GraphView, rewrite: Rewriter) -> None:
    """Adds a dimension to the result."""
    (result,) = graph.output.args
    rewrite.update(graph.output, args=(rewrite.insert(aten.unsqueeze, result, 0, before=graph.output),))


def changes_the_strides(graph: GraphView, rewrite: Rewriter) -> None:
    """The same numbers, laid out in another order."""
    (result,) = graph.output.args
    turned = rewrite.insert(aten.t, result, before=graph.output)
    dense = rewrite.insert(aten.clone, turned, memory_format=torch.contiguous_format, before=graph.output)
    rewrite.update(graph.output, args=(rewrite.insert(aten.t, dense, before=graph.output),))


def never_settles(graph: GraphView, rewrite: Rewriter) -> None:
    """Makes a new sine of each sine."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, aten.sin, node.args[0])


def inserts_what_cannot_be_computed(graph: GraphView, rewrite: Rewriter) -> None:
    """Calls an operator with a wrong number of arguments."""
    node = first_sine(graph.graph)
    rewrite.insert(aten.mm.default, node, before=graph.output)


def forgets_an_operand(graph: GraphView, rewrite: Rewriter) -> None:
    """Adds nothing to a value; its fake value would be that of the operand."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, aten.add.Tensor, node.args[0])


def forgets_an_operand_in_an_update(graph: GraphView, rewrite: Rewriter) -> None:
    """Changes a call that no longer fits, and says that its value is the same."""
    for node in graph.find(aten.sin):
        rewrite.update(node, target=aten.add.Tensor, respelled=True)


def forgets_an_operand_of_a_function(graph: GraphView, rewrite: Rewriter) -> None:
    """Calls a function of torch instead of an operator."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, torch.add, node.args[0])


def adopts_a_bad_call(graph: GraphView, rewrite: Rewriter) -> None:
    """Makes a node with torch.fx, and lets the rewriter record it."""
    node = first_sine(graph.graph)
    with graph.graph.inserting_before(node):
        new = graph.graph.call_function(aten.add.Tensor, (node.args[0],))
    rewrite.adopt(new)
    rewrite.replace(node, new)


def gives_too_much(graph: GraphView, rewrite: Rewriter) -> None:
    """Gives an operator an argument that it does not have."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, aten.relu.default, node.args[0], 3)


def gives_a_text(graph: GraphView, rewrite: Rewriter) -> None:
    """Gives a text for a tensor."""
    for node in graph.find(aten.sin):
        rewrite.replace(node, aten.add.Tensor, node.args[0], other="one")


def swaps_the_graph(graph: GraphView, rewrite: Rewriter) -> None:
    """Gives its module another graph."""
    other = Graph()
    other.graph_copy(graph.graph, {})
    other.output(next(n for n in other.nodes if n.op == "call_function"))
    graph.module.graph = other


def returns_a_graph(graph: GraphView, rewrite: Rewriter) -> Graph:
    """Does its work on a copy, which nobody would look at."""
    return Graph()


def yields(graph: GraphView, rewrite: Rewriter):
    """Is a generator, so its body never runs."""
    yield graph


WRONG = {
    raises_at_once: "ValueError: I give up",
    raises_in_an_edit: "ValueError: I give up",
    raises_after_many: "ValueError: I give up",
    erases_a_used_node: "RuntimeError: Tried to erase Node sin",
    tears_out_a_used_node: "uses sin, which is not in the graph",
    removes_the_output: "the graph has 0 outputs, not one",
    adds_an_output: "the graph has 2 outputs, not one",
    returns_another_value: "behind the rewriter's back",
    returns_twice: "the outputs were",
    drops_an_input: r"the inputs were \(arg0_1, arg1_1\) and are now \(arg0_1\)",
    edits_behind_the_back: "behind the rewriter's back",
    edits_half_behind_the_back: "behind the rewriter's back",
    erases_behind_the_back: "behind the rewriter's back",
    moves_behind_the_back: "behind the rewriter's back",
    unsorts: "used before it has been defined",
    changes_the_dtype: r"the output 0 was f32\[2, 3\] and is now f64\[2, 3\]: dtype",
    changes_the_shape: r"the output 0 was f32\[2, 3\] and is now f32\[1, 2, 3\]: shape",
    changes_the_strides: r"the output 0 was f32\[2, 3\] and is now f32\[2, 3\]\{1, 2\}: strides",
    never_settles: "does not terminate",
    inserts_what_cannot_be_computed: "mm",
    forgets_an_operand: r"aten.add.Tensor cannot be called with \(f32\[2, 3\]\): the argument 'other' is missing; "
    r"its schema is aten::add.Tensor\(Tensor self, Tensor other",
    forgets_an_operand_in_an_update: "the argument 'other' is missing",
    forgets_an_operand_of_a_function: r"torch.add cannot be called with \(f32\[2, 3\]\): .*'other' is missing",
    adopts_a_bad_call: "the argument 'other' is missing",
    gives_too_much: r"relu.default cannot be called with \(f32\[2, 3\], 3\): 1 positional arguments are allowed, 2 were",
    gives_a_text: r"cannot be called with \(f32\[2, 3\], other='one'\): the argument 'other' takes Tensor",
    swaps_the_graph: "behind the rewriter's back",
    returns_a_graph: "returned a Graph, which is ignored: a pass edits the graph in place",
    yields: "returned a generator, which is ignored",
}


def program(x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
    return x.sin() + (x * 2).sin() + (x + 1).sin()


def declared(fn):
    return graph_pass(stage="joint", numerics="exact")(fn)


def facts(module: torch.fx.GraphModule) -> list[tuple[str, str, str]]:
    return [(n.name, str(n.target), type_of(value_of(n))) for n in module.graph.nodes]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda fn: fn.__name__)
def test_the_run_goes_on_with_the_graph_as_it_was(wrong, tmp_path):
    inputs = torch.randn(2, 3), torch.randn(3)
    module, reference = graph_of(program, *inputs), graph_of(program, *inputs)
    expected, known = module(*inputs), facts(module)
    with pytest.warns(EductorWarning) as caught:
        records = run(module, declared(wrong), named("next"), repro_dir=tmp_path)
    (warning,) = [w for w in caught if issubclass(w.category, EductorWarning)]
    assert re.search(rf"the pass joint/{wrong.__name__} failed: .*{WRONG[wrong]}", str(warning.message))
    assert "The compile continues without it." in str(warning.message)
    assert [(r.name, r.status) for r in records] == [(wrong.__name__, "failed"), ("next", "unchanged")]
    assert re.search(WRONG[wrong], records[0].reason)
    assert (records[0].matches, records[0].nodes_before) == ((), records[0].nodes_after)
    assert is_equal(module.graph, reference.graph)
    assert facts(module) == known
    assert torch.equal(module(*inputs), expected)
    (file,) = tmp_path.glob(f"joint-{wrong.__name__}-*.py")
    assert str(file) in str(warning.message)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda fn: fn.__name__)
def test_strict_mode_raises_and_leaves_the_graph_as_it_was(wrong, tmp_path):
    inputs = torch.randn(2, 3), torch.randn(3)
    module = graph_of(program, *inputs)
    expected, before = module(*inputs), text_of(module)
    with pytest.raises(PassFailed, match=rf"the pass joint/{wrong.__name__} failed: .*{WRONG[wrong]}"):
        run(module, declared(wrong), strict=True, repro_dir=tmp_path)
    assert text_of(module) == before
    assert torch.equal(module(*inputs), expected)


def test_passes_before_and_after_the_failed_one_count(tmp_path):
    module = graph_of(lambda x: x.clone().sin() + 1)
    recorder = Recorder()
    options = {
        "passes": [graph_pass(stage="joint", numerics="exact", after="remove_noop_ops")(raises_after_many), sin_to_cos],
        "instruments": [recorder],
        "repro_dir": tmp_path,
    }
    with pytest.warns(EductorWarning, match="raises_after_many"):
        eductor.joint_graph_passes(module, options=options)
    assert recorder.changed() == ["joint/remove_noop_ops", "joint/sin_to_cos"]
    x = torch.randn(2, 3)
    assert torch.equal(module(x), x.cos() + 1)


def test_each_of_many_failures_is_undone(tmp_path):
    module = graph_of(program, torch.randn(2, 3), torch.randn(3))
    before = text_of(module)
    with pytest.warns(EductorWarning):
        records = run(module, *map(declared, WRONG), sin_to_cos, repro_dir=tmp_path)
    assert [r.status for r in records] == ["failed"] * len(WRONG) + ["changed"]
    assert text_of(module) != before
    module.graph.lint()


# ------------------------------------------------------------------------------------------------------ debug and stages


def writes(graph: GraphView, rewrite: Rewriter) -> None:
    """Writes in a functional stage."""
    for node in graph.find(aten.sin):
        rewrite.insert(aten.add_.Tensor, node, 1, before=node.next)


def test_debug_mode_knows_the_laws_of_the_stage(tmp_path):
    x = torch.randn(2, 3)
    module = graph_of(lambda x: x.sin() + 1)
    with pytest.warns(
        EductorWarning, match=r"(?s)joint/writes failed: add__tensor breaks the law 'functional'.*-> +add__"
    ):
        (record,) = run(module, declared(writes), debug=True, repro_dir=tmp_path)
    assert record.status == "failed"
    assert torch.equal(module(x), x.sin() + 1)


def test_a_law_that_was_broken_before_is_not_blamed_on_a_pass(tmp_path):
    def prepare(graph: Graph) -> None:
        with graph.inserting_before(graph.output_node()):
            graph.call_function(aten.add_.Tensor, (graph.find_nodes(op="placeholder")[0], 1))

    module = graph_of()
    prepare(module.graph)
    module.recompile()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (record,) = run(module, sin_to_cos, debug=True, repro_dir=tmp_path)
    assert record.status == "changed"
    assert not any("sin_to_cos" in str(w.message) for w in caught)


def test_gradients_of_the_result_are_part_of_the_interface_before_autograd(tmp_path):
    @graph_pass(stage="pre_grad", numerics="exact")
    def detaches(graph: GraphView, rewrite: Rewriter) -> None:
        """Cuts the result off."""
        for node in graph.find(aten.sin):
            rewrite.replace(node, torch.detach, node.args[0])

    module = graph_of(lambda x: x.sin(), torch.randn(3, requires_grad=True), stage="pre_grad")
    with pytest.warns(
        EductorWarning, match=r"pre_grad/detaches failed: the output 0 was f32\[3\] grad .* requires_grad"
    ):
        run(module, detaches, stage="pre_grad", repro_dir=tmp_path)


def test_an_equal_size_spelled_in_another_way_is_no_other_shape():
    """Sizes are compared, not their texts."""

    @graph_pass(stage="joint", numerics="exact")
    def doubles(graph: GraphView, rewrite: Rewriter) -> None:
        """Puts a reshape for a cat of two."""
        for node in graph.find(aten.cat):
            (operands,) = node.args
            halves = rewrite.insert(aten.stack, operands, before=node)
            rewrite.replace(node, aten.flatten.using_ints, halves, 0, 1)

    module = graph_of(lambda x: torch.cat([x, x]), torch.randn(4, 3), dynamic=True)
    (record,) = run(module, doubles, strict=True)
    assert record.changed
    x = torch.randn(5, 3)
    assert torch.equal(module(x), torch.cat([x, x]))


# --------------------------------------------------------------------------------------------------- plain functions


def forgets_the_output(graph: Graph) -> None:
    graph.erase_node(graph.output_node())


def returns_the_input(graph: Graph) -> None:
    graph.output_node().args = (graph.find_nodes(op="placeholder")[0].args or (),)


def uses_a_node_of_another_graph(graph: Graph) -> None:
    other = Graph()
    first_sine(graph).args = (other.placeholder("alien"),)


def makes_a_cycle(graph: Graph) -> None:
    first, *_, last = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    first.args = (last, 1)


def calls_nonsense(graph: Graph) -> None:
    first_sine(graph).target = aten.mm.default


def returns_a_copy(graph: Graph) -> Graph:
    other = Graph()
    other.graph_copy(graph, {})
    return other


def plain_raises(graph: Graph) -> None:
    first_sine(graph).target = aten.cos.default
    raise KeyError("plain")


@pytest.mark.parametrize(
    "wrong",
    [
        forgets_the_output,
        returns_the_input,
        uses_a_node_of_another_graph,
        makes_a_cycle,
        calls_nonsense,
        returns_a_copy,
        plain_raises,
    ],
)
@pytest.mark.parametrize("stage", ["joint", "post_grad"])
def test_a_plain_function_that_goes_wrong_is_undone(wrong, stage, tmp_path):
    module = graph_of()
    known, x = facts(module), torch.randn(2, 3)
    expected = module(x)
    with pytest.warns(EductorWarning, match=f"the pass {stage}/{wrong.__name__} failed"):
        records = run(module, plain_tag, wrong, named("next", stage=stage), stage=stage, repro_dir=tmp_path)
    assert [r.status for r in records] == ["unchanged", "failed", "unchanged"]
    assert facts(module) == known
    assert torch.equal(module(x), expected)
    assert all(n.meta["tag"] == "seen" for n in module.graph.nodes)


def test_a_plain_function_may_give_the_module_another_graph_of_the_same_interface():
    def swap(graph: Graph) -> Graph:
        other = Graph()
        result = other.graph_copy(graph, {})
        other.output(result)
        for node in other.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.cos.default
        graph.owning_module.graph = other
        return other

    module = graph_of(lambda x: x.sin() + 1)
    x = torch.randn(2, 3)
    records = run(module, swap, sin_to_cos, strict=True)
    assert [r.status for r in records] == ["changed", "unchanged"]
    assert torch.equal(module(x), x.cos() + 1)


# ------------------------------------------------------------------------------------------ attributes of the module


def constant_program(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + torch.tensor([1.0, 2.0, 3.0])


def with_constant() -> torch.fx.GraphModule:
    module = graph_of(constant_program)
    assert module.graph.find_nodes(op="get_attr")
    return module


@pytest.mark.parametrize("how", ["deleted", "overwritten"])
def test_tensors_of_the_module_come_back(how, tmp_path):
    module = with_constant()
    x = torch.randn(2, 3)
    expected = module(x)

    def wrong(graph: GraphView, rewrite: Rewriter) -> None:
        """Takes a constant away, and fails."""
        name = str(graph.graph.find_nodes(op="get_attr")[0].target)
        delattr(graph.module, name) if how == "deleted" else setattr(graph.module, name, torch.zeros(3))
        raise ValueError("too late")

    with pytest.warns(EductorWarning, match="too late"):
        run(module, declared(wrong), repro_dir=tmp_path)
    assert torch.equal(module(x), expected)


# ------------------------------------------------------------------------------------------------------- the message


def long_program(x: torch.Tensor) -> torch.Tensor:
    for _ in range(12):
        x = x.cos() + 1
    x = x.sin()
    for _ in range(12):
        x = x.cos() + 1
    return x


def message_of(fn, tmp_path, program=long_program) -> list[str]:
    with pytest.raises(PassFailed) as caught:
        run(graph_of(program), declared(fn), strict=True, repro_dir=tmp_path)
    first, *lines, last = str(caught.value).split("\n")
    assert first.startswith(f"the pass joint/{fn.__name__} failed: ")
    assert re.fullmatch(r"The graph before it: python .*\.py", last)
    return lines


def test_the_place_is_shown_in_about_ten_lines(tmp_path):
    lines = message_of(raises_in_an_edit, tmp_path)
    assert len(lines) == 10
    (arrow,) = [line for line in lines if line.startswith("->")]
    assert "sin = torch.ops.aten.sin.default" in arrow
    assert lines.index(arrow) in (4, 5)
    assert any("cos_default = " in line for line in lines)


def test_a_place_that_was_replaced_is_shown_as_what_it_became(tmp_path):
    (arrow,) = [line for line in message_of(raises_after_many, tmp_path) if line.startswith("->")]
    assert "cos_default = " in arrow


def test_a_place_that_was_erased_is_shown_in_the_graph_before(tmp_path):
    def erases_and_raises(graph: GraphView, rewrite: Rewriter) -> None:
        """Erases a node and raises."""
        for node in graph.find(aten.sin):
            node.replace_all_uses_with(node.args[0])
            rewrite.erase(node)
            raise ValueError("here")

    (arrow,) = [line for line in message_of(erases_and_raises, tmp_path) if line.startswith("->")]
    assert "sin = torch.ops.aten.sin.default" in arrow


def test_a_broken_promise_is_shown_at_the_node_that_breaks_it(tmp_path):
    lines = message_of(edits_behind_the_back, tmp_path)
    (arrow,) = [line for line in lines if line.startswith("->")]
    assert "sin = torch.ops.aten.cos.default" in arrow
    (arrow,) = [line for line in message_of(changes_the_shape, tmp_path) if line.startswith("->")]
    assert "return" in arrow


def test_without_a_place_the_end_of_the_graph_is_shown(tmp_path):
    lines = message_of(raises_at_once, tmp_path)
    assert len(lines) == 10
    assert "return" in lines[-1]
    assert not any(line.startswith("->") for line in lines)


def test_a_folder_that_cannot_be_written_does_not_stop_the_compile(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(EductorWarning, match=r"(?s)raises_at_once.*could not be written: (NotADirectory|FileExists)"):
        (record,) = run(graph_of(), declared(raises_at_once), repro_dir=tmp_path / "file")
    assert record.status == "failed"


def test_what_cannot_be_printed_is_no_second_failure(tmp_path):
    def leaves_rubbish(graph: GraphView, rewrite: Rewriter) -> None:
        """Leaves an argument whose text cannot be made."""

        class Rubbish:
            def __str__(self):
                raise RuntimeError("no text")

            __repr__ = __str__

        first_sine(graph.graph)._args = (Rubbish(),)
        raise ValueError("after that")

    with pytest.warns(EductorWarning, match="leaves_rubbish failed: ValueError: after that"):
        run(graph_of(), declared(leaves_rubbish), repro_dir=tmp_path)


def test_a_pass_that_fails_in_a_compile_leaves_eagers_result(tmp_path):
    def wrong(graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.sin):
            node.target = torch.cos
        raise ValueError("halfway")

    def program(x):
        return torch.sin(x) * 2

    x = torch.randn(3)
    compiled = eductor.compile(program, engine="aten", pre_grad_custom_pass=[wrong], repro_dir=tmp_path)
    with pytest.warns(EductorWarning, match="pre_grad/wrong failed: ValueError: halfway"):
        result = compiled(x)
    assert torch.equal(result, program(x))


def test_the_default_pipeline_reports_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error", EductorWarning)
        for stage in ("pre_grad", "joint", "post_grad"):
            module = graph_of(program, torch.randn(2, 3), torch.randn(3), stage=stage)
            context = eductor.Context(stage, eductor.Options(debug=True, strict=True))
            Pipeline.default().run(stage, module, context)

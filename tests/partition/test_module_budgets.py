"""Budgets for some modules of a model."""

from __future__ import annotations

import pytest
import torch
from saving import Saved
from torch import nn

import eductor
from eductor.errors import BadOption


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))).sin())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).sum()


class InModules(Saved):
    """The module that each value of the plan was made in, too."""

    def before_stage(self, run):
        if run.name == "partition":
            stacks = {n.name: n.meta.get("nn_module_stack") for n in run.module.graph.nodes}
            self.modules = {name: str([*s.values()][-1][0]) if s else "" for name, s in stacks.items()}

    def bytes_in(self, name):
        return sum(entry.bytes for entry in self.plan.saved if f"{name}." in f"{self.modules[entry.name]}.")


def saved_with(budget):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, saved = Model(), InModules()
    x = torch.randn(8, 16, requires_grad=True)
    eductor.compile(model, engine="aten", memory_budget=budget, instruments=[saved], strict=True)(x).backward()
    return saved, [x.grad, *(p.grad for p in model.parameters())]


def test_a_module_keeps_its_budget_and_the_others_are_as_before():
    (full, expected), (half, got) = saved_with(1), saved_with({"blocks.1": 0.5})
    for name in ("blocks.0", "blocks.2", "head"):
        assert half.bytes_in(name) == full.bytes_in(name) > 0
    assert 0 < half.bytes_in("blocks.1") <= 0.5 * full.bytes_in("blocks.1")
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_names_are_patterns_of_paths_or_classes_and_the_first_one_counts():
    full, _ = saved_with(1)
    by_path, by_class, first = (
        saved_with(budget)[0] for budget in ({"blocks.*": 0}, {"Block": 0}, {"blocks.2": 1, "Block": 0})
    )
    assert by_path.plan.bytes == by_class.plan.bytes < full.plan.bytes
    assert by_path.bytes_in("head") == full.bytes_in("head")
    assert first.bytes_in("blocks.2") == full.bytes_in("blocks.2")
    assert first.bytes_in("blocks.0") < full.bytes_in("blocks.0")


def test_bytes_of_a_module():
    saved, _ = saved_with({"blocks.*": 2000})
    assert 0 < sum(saved.bytes_in(f"blocks.{i}") for i in range(3)) <= 2000


def test_a_name_that_no_module_has_is_told_with_those_that_there_are():
    with pytest.warns(eductor.EductorWarning, match=r"no module .*blocks\.0"):
        saved_with({"bloks.*": 0.5})


@pytest.mark.parametrize("budget", [{"blocks": 2.5}, {3: 0.5}, {"a": {"b": 1}}, {"blocks": True}])
def test_a_dictionary_of_something_else_is_an_error(budget):
    with pytest.raises(BadOption, match=r"from 0 .* to 1 .*bytes above 1.*modules"):
        eductor.compile(nn.Linear(2, 2), memory_budget=budget)

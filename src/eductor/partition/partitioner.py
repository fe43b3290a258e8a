"""Chooses what to save and what to recompute: the cheapest choice on a device, within a memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from eductor.cost import Device, device_of
from eductor.graph import value_of
from eductor.graph.snapshot import own_module
from eductor.options import Options
from eductor.partition.budget import within
from eductor.partition.compat_prices import bans_of, compat_problem
from eductor.partition.curve import BudgetStep, curve, step_for
from eductor.partition.liveness import Liveness
from eductor.partition.min_cut import cheapest
from eductor.partition.module_budgets import within_regions
from eductor.partition.node_info import NodeInfo, classify, computed_by
from eductor.partition.plan import EDITED, UNUSED, Plan, PlanEntry, keys
from eductor.partition.plan_replay import replayed
from eductor.partition.prices import PICOSECONDS, Priced, price_of_a_byte, priced
from eductor.partition.problem import Choice, bytes_of, completed
from eductor.partition.reasons import why_again, why_saved
from eductor.partition.saves import Saves, forms_of
from eductor.partition.split import split
from eductor.pipeline import Context, GraphName, Pipeline
from eductor.program.joint import Joint
from eductor.program.parts import Parts

GivenOptions = Mapping[str, Any] | Options | None
"""Options as callers of the library give them."""


def partition_fn(joint: Joint, *, plan: Plan | None = None, options: GivenOptions = None) -> Parts:
    """Partitions a joint graph, by a plan if given; without tangents there is only a forward."""
    options = Options.of(options)
    saves = choose_saves(joint, plan=plan, options=options)
    if not any(saves.forms.values()):
        return split(joint, saves)
    own = replace(joint, module=own_module(joint.module))
    name = GraphName(role="joint")
    context = Context("partition", options, graph=name, gradients=joint.gradients, saved=saves.forms)
    edited = Pipeline.of(options).run("partition", own.module, context, options.instruments)
    return split(own, saves, edited=edited)


def min_cut_rematerialization_partition(joint: Joint, *, options: GivenOptions = None) -> Parts:
    """Partitions a joint graph, with saved values chosen by the costs of saving and recomputing, within the memory budget."""
    return partition_fn(joint, options=options)


def choose_saves(joint: Joint, *, plan: Plan | None = None, options: GivenOptions = None) -> Saves:
    """What a joint graph saves for its backward, and in which form: as a plan says if there is one, or what is cheapest."""
    info, graph, options = classify(joint), joint.module.graph, Options.of(options)
    if not joint.tangents:
        return Saves.of(info, [])
    found, choice = _chosen(graph, info, options, plan)
    saved = found.chosen(choice.kept)
    return Saves.of(info, saved, found.chosen(choice.ahead), forms_of(info, saved, main_device(graph, options)))


def choose_saved_values_set(
    joint_graph: Graph,
    node_info: NodeInfo,
    memory_budget: float | Mapping[str, float] = 1,
    *,
    options: GivenOptions = None,
) -> list[Node]:
    """The values to save for the backward, in the order of the graph.

    With a budget of 1 these are the cheapest in time and memory, or without the option `recompute` all that the backward
    reads; with 0, only inputs and what must not be recomputed. In between, it is the fraction of that memory that may be
    used; a whole number above 1 is a number of bytes. A dictionary gives budgets to modules.
    """
    options = replace(Options.of(options), memory_budget=memory_budget)  # checks it
    found, choice = _chosen(joint_graph, node_info, options)
    return found.chosen(choice.kept)


def explain_saved(joint: Joint, *, plan: Plan | None = None, options: GivenOptions = None) -> Plan:
    """What a joint graph saves and what it recomputes, by a plan if given, with the bytes, cost and reason of each."""
    options = Options.of(options)
    graph, info = joint.module.graph, classify(joint)
    (found, choice), device, names = _chosen(graph, info, options, plan), main_device(graph, options), keys(graph)
    edited = frozenset() if plan is None else plan.edited()
    places = {node: i for i, node in enumerate(found.nodes)}
    forms, bans = forms_of(info, found.chosen(choice.kept), device), bans_of(info, found, options)

    def entry(number: int, *, is_saved: bool) -> PlanEntry:
        node, value = found.nodes[number], found.problem.values[number]
        again = found.problem.values[places[computed_by(node)]].again if is_saved else value.again
        costs = [None if cost is None else cost / PICOSECONDS for cost in (value.keep, again)]
        here, instead = costs if is_saved else reversed(costs)
        reason = why_saved(node, info, bans, must_be=again is None) if is_saved else why_again(node, info, device)
        if number not in choice.kept and number not in choice.again:
            reason = UNUSED
        elif names[node] in edited:
            reason = EDITED
        if is_saved and node in forms:
            reason = f"{reason}, as {forms[node].name}"
        return PlanEntry(node.name, names[node], value.bytes, here or 0.0, instead, reason, number in choice.ahead)

    return Plan(
        options.memory_budget if plan is None else plan.budget,
        tuple(entry(i, is_saved=True) for i in sorted(choice.kept)),
        tuple(entry(i, is_saved=False) for i in sorted(choice.again)),
        tuple(entry(i, is_saved=False) for i in sorted({*places.values()} - choice.kept - choice.again)),
        Liveness(info, device).peak(found.chosen(choice.kept), found.chosen(choice.ahead)),
    )


def timeline(joint: Joint, plan: Plan, *, options: GivenOptions = None) -> list[dict[str, str | int]]:
    """The estimated bytes live beyond the inputs while each node runs, in forward and backward."""
    device = main_device(joint.module.graph, Options.of(options))
    held = Liveness(classify(joint), device).timeline(*plan.nodes(joint.module.graph))
    return [{"phase": phase, "name": node.name, "live": live} for phase, node, live in held]


def memory_curve(joint: Joint, *, options: GivenOptions = None) -> list[BudgetStep]:
    """The choices from the fastest down to one that saves only inputs, with estimated bytes, time and peak of each."""
    options = replace(Options.of(options), memory_budget=0)  # checks that the policy allows a budget
    info, device = classify(joint), main_device(joint.module.graph, options)
    full, found = _fastest(info, device, options)[1], _priced(info, device, options, is_limited=True)
    return curve(found, Liveness(info, device), full, options.budget_solver)


def _chosen(graph: Graph, info: NodeInfo, options: Options, plan: Plan | None = None) -> tuple[Priced, Choice]:
    """The priced values of a joint graph, and the choice: by a plan if there is one, or the cheapest within the budget.

    A plan may save and recompute anything possible, whether it pays or not.
    """
    device, budget = main_device(graph, options), options.memory_budget
    if plan is not None:
        found = priced(info, device, recompute=False, is_limited=True)
        return found, replayed(plan, info, found)
    found, full = _fastest(info, device, options)
    if isinstance(budget, Mapping):
        limited = _priced(info, device, options, is_limited=True)
        return found, within_regions(limited, full, budget, options.budget_solver)
    part = budget if budget <= 1 else budget / max(bytes_of(found.problem, full), 1)
    if part >= 1:
        return found, full
    found = _priced(info, device, options, is_limited=True)
    return found, step_for(curve(found, Liveness(info, device), full, options.budget_solver), part).choice


def _fastest(info: NodeInfo, device: Device, options: Options) -> tuple[Priced, Choice]:
    """The choice without a memory limit: all that the backward reads, or the cheapest choice with no more bytes."""
    found = _priced(info, device, options)
    problem = found.problem
    if options.partition_policy == "compat":
        return found, cheapest(compat_problem(info, found, options))
    all_read = completed(problem, {i for i, value in enumerate(problem.values) if value.keep is not None})
    if all_read is None:
        return found, cheapest(problem)
    if not options.recompute:
        return found, all_read
    choice, most = cheapest(problem, price_of_a_byte(device)), bytes_of(problem, all_read)
    return found, choice if bytes_of(problem, choice) <= most else within(problem, most)


def _priced(info: NodeInfo, device: Device, options: Options, *, is_limited: bool = False) -> Priced:
    recompute = options.recompute and options.partition_policy == "priced"
    return priced(info, device, recompute=recompute, is_limited=is_limited)


def main_device(graph: Graph, options: Options) -> Device:
    """The device that most of a graph runs on."""
    sizes: dict[torch.device, int] = {}
    for node in graph.nodes:
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            sizes[value.device] = sizes.get(value.device, 0) + 1
    return device_of(max(sizes, key=lambda d: sizes[d], default=torch.device("cpu")), options)

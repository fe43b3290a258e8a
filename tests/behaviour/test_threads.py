"""Threads that compile and call at once see what each would see alone."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

import eductor
from behaviour.programs import Mlp, Net, assert_same


def at_once(*work):
    """Runs each function in a thread of its own, all at the same time; gives what they gave."""
    start, results = threading.Barrier(len(work)), [None] * len(work)

    def run(i):
        start.wait()
        try:
            results[i] = work[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def training(model, step, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = step(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(value.clone() for value in model.state_dict().values())]


@pytest.mark.filterwarnings("error::eductor.EductorWarning")
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_threads_that_compile_and_train_at_once(engine):
    batches = [torch.randn(n, 8) for n in (2, 2, 3, 4)]
    models = [Mlp() for _ in range(2)]
    expected = [training(m, m, batches) for m in map(copy.deepcopy, models)]

    def work(model):
        return lambda: training(model, eductor.compile(model, engine=engine), batches)

    assert_same(expected, at_once(*map(work, models)), close=True)


def test_threads_that_call_one_compiled_model_at_once():
    model = Net().eval()
    compiled = eductor.compile(model, engine="aten", profile="exact")
    batches = [[torch.randn(n, 3, 6, 6) for n in sizes] for sizes in ((2, 3, 4, 5), (5, 2, 3, 7))]

    def work(xs):
        return lambda: [compiled(x) for x in xs for _ in range(3)]

    got = at_once(*map(work, batches))
    assert_same([[model(x) for x in xs for _ in range(3)] for xs in batches], got)


def test_a_backward_runs_in_another_thread_than_its_forward():
    model = Mlp()
    reference = copy.deepcopy(model)
    x = torch.randn(4, 8)
    loss = eductor.compile(model, profile="exact")(x).sum()
    reference(x).sum().backward()
    at_once(loss.backward)
    assert_same([p.grad for p in reference.parameters()], [p.grad for p in model.parameters()])


def test_modes_of_one_thread_are_not_those_of_another():
    model = Mlp()
    compiled = eductor.compile(model, profile="exact")
    x = torch.randn(4, 8)

    def without_gradients():
        with torch.no_grad():
            return [compiled(x).requires_grad for _ in range(5)]

    def with_gradients():
        return [compiled(x).requires_grad for _ in range(5)]

    assert at_once(without_gradients, with_gradients) == [[False] * 5, [True] * 5]

"""A few steps of training, and everything that they leave behind."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.overrides import TorchFunctionMode

from . import MODELS

SIZES = (2, 2, 3)
"""Batches: the second has the size of the first, the third makes a graph for any size."""


def as_it_is(step):
    return step


def train(
    name,
    compile=as_it_is,
    *,
    sizes=SIZES,
    optimizer=torch.optim.AdamW,
    rate=1e-2,
    device="cpu",
    dtype=torch.float32,
    autocast=False,
    wide=False,
    dropout=True,
    seed=0,
):
    """Losses, outputs, gradients, then parameters, buffers and the generator's state, all by name.

    With `wide` all is in float64, with the draws and the roundings of nothing else.
    """
    subject = MODELS[name]
    torch.manual_seed(seed)
    model = subject.make().to(device, dtype).train()
    if not dropout:
        keep_all(model)
    batches = [
        [x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in subject.batch(n)] for n in sizes
    ]
    if wide:
        model = model.double()
        batches = [[x.double() if x.is_floating_point() else x for x in batch] for batch in batches]
    step = compile(lambda *batch: subject.step(model, *batch))
    descent = optimizer(model.parameters(), lr=rate)
    facts = {}
    torch.manual_seed(seed)
    for i, batch in enumerate(batches):
        descent.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=autocast), Wide() if wide else nullcontext():
            loss, output = step(*batch)
        with Wide() if wide else nullcontext():
            loss.backward()
        facts[f"{i} loss"], facts[f"{i} output"] = loss.detach(), output.detach()
        gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        facts |= {f"{i} gradient {key}": g.clone() for key, g in gradients.items()}
        descent.step()
    facts |= {f"parameter {key}": p.detach() for key, p in model.named_parameters()}
    facts |= {f"buffer {key}": b for key, b in model.named_buffers()}
    return facts | {"generator": torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()}


def keep_all(model):
    """No dropout of any kind, be its share a module's, a function's argument or the configuration's."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for owner in filter(None, (module, getattr(module, "config", None))):
            shares = [key for key, value in vars(owner).items() if "drop" in key and isinstance(value, float)]
            for key in shares:
                setattr(owner, key, 0.0)


class Wide(TorchFunctionMode):
    """What a model asks for in float32 it gets in float64; random numbers are those of float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        if func in (torch.rand, torch.randn, torch.rand_like, torch.randn_like):
            return func(*args, **{**(kwargs or {}), "dtype": torch.float32}).double()
        if func is torch._grouped_mm:
            return grouped_mm(*args, offs=kwargs["offs"])
        widened = [torch.float64 if a is torch.float32 else a for a in args]
        return func(*widened, **{k: torch.float64 if a is torch.float32 else a for k, a in (kwargs or {}).items()})


def grouped_mm(rows, matrices, *, offs):
    """The products of groups of rows, each with a matrix of its own; torch has no kernel for float64."""
    groups = rows.tensor_split(offs[:-1].long().cpu())
    return torch.cat([group @ matrix for group, matrix in zip(groups, matrices, strict=True)])

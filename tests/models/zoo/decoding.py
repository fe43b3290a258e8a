"""Inference with a cache: a prompt, then token by token."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from . import MODELS
from .subject import tokens
from .training import Wide, as_it_is


def decode(name, compile=as_it_is, *, static=False, wide=False, steps=4):
    """The logits of a prompt and of the tokens that follow, and what the cache holds in the end, by name."""
    from transformers import DynamicCache, StaticCache

    torch.manual_seed(0)
    model = MODELS[name].make().eval()
    model = model.double() if wide else model
    texts = [tokens(2, 5), *(tokens(2, 1) for _ in range(steps))]
    cache = StaticCache(config=model.config, max_cache_len=16) if static else DynamicCache(config=model.config)
    keyword = "cache_params" if name == "mamba" else "past_key_values"
    step = compile(lambda ids, cache: model(ids, use_cache=True, **{keyword: cache}).logits)
    with torch.no_grad(), Wide() if wide else nullcontext():
        facts = {f"{i} output": step(ids, cache) for i, ids in enumerate(texts)}
    for i, layer in enumerate(cache.layers):
        facts |= {f"cache {i} {key}": x for key, x in vars(layer).items() if isinstance(x, torch.Tensor)}
    return facts

"""Attention after a roll of a channels-last tensor: the fake roll is contiguous, and the fused kernel misread the real one."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS: dict = {}


class Model(nn.Module):
    def forward(self, x1):
        v3 = torch.cat([x1, x1, x1], 2).roll(1, -4)
        return (F.scaled_dot_product_attention(v3, v3, v3, is_causal=False),)


def inputs():
    x1 = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    return (x1.to(memory_format=torch.channels_last),)


def model():
    return Model()

"""Batch norm in evaluation of a transposed matrix: eager's result is row-major, the code generator's is transposed."""

import torch
from torch import nn

ENGINE = "inductor"
OPTIONS: dict = {}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.m0 = nn.BatchNorm1d(3)

    def forward(self, x0):
        return (self.m0(x0),)


def inputs():
    return (torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).transpose(-1, 0),)


def model():
    return Model().eval().requires_grad_(False)

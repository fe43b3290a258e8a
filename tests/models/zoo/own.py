"""Models that transformers lacks: a U-Net as in diffusion, a recommendation model, a graph network."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .subject import CLASSES, Subject, classes, labels


class Block(nn.Module):
    """A residual block that knows the time."""

    def __init__(self, width, out, time):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, width), nn.Conv2d(width, out, 3, padding=1)
        self.time, self.skip = nn.Linear(time, out), nn.Conv2d(width, out, 1)
        self.dropped = 0.1

    def forward(self, x, time):
        h = self.conv(F.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        return F.dropout(h, self.dropped, self.training) + self.skip(x)


class UNet(nn.Module):
    """Down, attention in the middle, up again with skips."""

    def __init__(self, width=8):
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down1, self.down2 = Block(width, width, time), Block(width, 2 * width, time)
        self.attention = nn.MultiheadAttention(2 * width, 2, batch_first=True)
        self.up2, self.up1 = Block(4 * width, width, time), Block(2 * width, width, time)

    def forward(self, x, when):
        powers = torch.exp(-math.log(1e4) * torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        angles = when[:, None] * powers
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        one = self.down1(self.first(x), time)
        two = self.down2(F.avg_pool2d(one, 2), time)
        flat = two.flatten(2).transpose(1, 2)
        middle = two + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(two.shape)
        up = F.interpolate(self.up2(torch.cat([middle, two], 1), time), scale_factor=2, mode="nearest")
        return self.last(F.silu(self.up1(torch.cat([up, one], 1), time)))


def unet():
    def step(model, x, noise, when):
        guess = model(x + noise * when[:, None, None, None], when)
        return F.mse_loss(guess, noise.to(guess.dtype)), guess

    return Subject(UNet, lambda size: (torch.randn(size, 3, 8, 8), torch.randn(size, 3, 8, 8), torch.rand(size)), step)


class Recommender(nn.Module):
    """Bags of categories and numbers, all pairs of their products, an MLP above."""

    def __init__(self, tables=4, rows=20, width=8, numbers=6):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(numbers, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, width))
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, numbers, categories):
        dense = self.bottom(numbers)
        rows = torch.stack([dense, *(bag(categories[:, i]) for i, bag in enumerate(self.bags))], dim=1)
        products = rows @ rows.transpose(1, 2)
        left, right = torch.tril_indices(rows.shape[1], rows.shape[1], offset=-1, device=rows.device)
        return self.top(torch.cat([dense, products[:, left, right]], dim=1)).squeeze(-1)


def recommender():
    def step(model, numbers, categories, clicked):
        logits = model(numbers, categories)
        return F.binary_cross_entropy_with_logits(logits, clicked.to(logits.dtype)), logits

    return Subject(
        Recommender,
        lambda size: (torch.randn(size, 6), torch.randint(20, (size, 4, 3)), torch.randint(2, (size,)).float()),
        step,
    )


class GraphNetwork(nn.Module):
    """Messages along edges, summed, averaged and with attention, at the nodes of a graph."""

    def __init__(self, width=12):
        super().__init__()
        self.first = nn.Linear(6, width)
        self.message, self.score = nn.Linear(2 * width, width), nn.Linear(2 * width, 1)
        self.norm, self.cell, self.head = nn.BatchNorm1d(width), nn.GRUCell(2 * width, width), nn.Linear(width, CLASSES)
        self.dropped = 0.1

    def forward(self, x, edges):
        source, target = edges
        h = self.first(x)
        for _ in range(2):
            ends = torch.cat([h[source], h[target]], dim=-1)
            message = F.relu(self.message(ends))
            weight = F.leaky_relu(self.score(ends)).squeeze(-1).exp()
            total = torch.zeros(len(x), device=h.device, dtype=weight.dtype).index_add(0, target, weight)
            attended = torch.zeros_like(h).index_add(
                0, target, (message * (weight / total[target])[:, None]).to(h.dtype)
            )
            mean = torch.zeros_like(h).scatter_reduce(
                0, target[:, None].expand_as(message), message.to(h.dtype), "mean", include_self=False
            )
            h = self.norm(self.cell(torch.cat([attended, mean], dim=-1), h))
        return self.head(F.dropout(h, self.dropped, self.training))


def graph_network():
    def batch(size):
        nodes = 5 * size
        edges = torch.cat([torch.randint(nodes, (2, 6 * size)), torch.arange(nodes).expand(2, nodes)], dim=1)
        return torch.randn(nodes, 6), edges, labels(nodes)

    return Subject(GraphNetwork, batch, lambda model, x, edges, target: classes(model(x, edges), target))


OWN = {"unet": unet(), "recommender": recommender(), "graph_network": graph_network()}

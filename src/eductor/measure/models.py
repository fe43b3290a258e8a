"""The built-in models of `eductor bench`: small on a CPU, of realistic size on a GPU."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Decoder(nn.Module):
    """A decoder block of a language model: RMS norms, grouped-query attention, a gated feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, width // 4, bias=False), nn.Linear(width, width // 4, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        q, k, v = (p(h).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        h = self.second(x)
        result: torch.Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result


class Encoder(nn.Module):
    """An encoder block with hand-written masked attention and gelu."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        weights = scores.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(-1)
        x = self.first(x + self.o((weights @ v).transpose(1, 2).flatten(2)))
        h = self.up(x)
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        result: torch.Tensor = self.second(x + self.down(h))
        return result


class Language(nn.Module):
    """A language model, from tokens to logits, with blocks of either kind."""

    def __init__(self, block: type[nn.Module], words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, *rest)
        logits: torch.Tensor = self.head(x)
        return logits


class Ranking(nn.Module):
    """A ranking model: a small tower for each feature, then one for all of them."""

    offsets: torch.Tensor

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.tables = nn.Embedding(features * 1000, width)
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(features))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(features))
        self.top = nn.Sequential(
            nn.Linear(features * width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.register_buffer("offsets", torch.arange(features) * 1000, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        pieces = self.tables(ids + self.offsets).flatten(1).split(self.width, dim=1)
        towers = zip(pieces, self.linears, self.norms, strict=True)
        scores: torch.Tensor = self.top(torch.cat([norm(torch.tanh(linear(x))) for x, linear, norm in towers], dim=1))
        return scores


class Residual(nn.Module):
    """A residual block: two convolutions with norms, and a skip connection."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm, self.last_norm = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.around = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.last_norm(self.second(self.norm(self.first(x)).relu()))
        result: torch.Tensor = (h + self.around(x)).relu()
        return result


class UNet(nn.Module):
    """A U-Net, from images to images: down, then up with skip connections."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.down = nn.ModuleList([Residual(3, c), Residual(c, 2 * c, 2), Residual(2 * c, 4 * c, 2)])
        self.up = nn.ModuleList([Residual(6 * c, 2 * c), Residual(3 * c, c)])
        self.last = nn.Conv2d(c, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](x)
        second = self.down[1](first)
        x = self.up[0](torch.cat([F.interpolate(self.down[2](second), scale_factor=2.0), second], 1))
        x = self.up[1](torch.cat([F.interpolate(x, scale_factor=2.0), first], 1))
        image: torch.Tensor = self.last(x)
        return image


def _placed(model: nn.Module, device: str) -> nn.Module:
    return model.to(device, torch.bfloat16) if device == "cuda" else model


def decoder(device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    words, width, heads, layers, shape = (
        (32000, 2048, 16, 4, (4, 1024)) if device == "cuda" else (500, 128, 4, 2, (4, 64))
    )
    return _placed(Language(Decoder, words, width, heads, layers), device), (
        torch.randint(0, words, shape, device=device),
    )


def encoder(device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    words, width, heads, layers, shape = (
        (30522, 768, 12, 12, (16, 512)) if device == "cuda" else (500, 128, 4, 2, (4, 64))
    )
    tokens = torch.randint(0, words, shape, device=device)
    lengths = torch.randint(shape[1] // 2, shape[1] + 1, (shape[0], 1), device=device)
    mask = torch.arange(shape[1], device=device) < lengths
    return _placed(Language(Encoder, words, width, heads, layers), device), (tokens, mask)


def ranking(device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    features, width, rows = (64, 64, 4096) if device == "cuda" else (16, 16, 128)
    return Ranking(features, width).to(device), (torch.randint(0, 1000, (rows, features), device=device),)


def residual(device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    channels, shape = (64, (32, 3, 224, 224)) if device == "cuda" else (8, (4, 3, 32, 32))
    blocks = [Residual(3, channels, 2), *(Residual(channels << i, channels << i + 1, 2) for i in range(3))]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels << 3, 1000))
    x = torch.randn(shape, device=device)
    return _placed(model, device), (x.bfloat16() if device == "cuda" else x,)


def unet(device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    channels, shape = (64, (8, 3, 128, 128)) if device == "cuda" else (8, (2, 3, 32, 32))
    x = torch.randn(shape, device=device)
    return _placed(UNet(channels), device), (x.bfloat16() if device == "cuda" else x,)


BUILT_IN = {"decoder": decoder, "encoder": encoder, "ranking": ranking, "residual": residual, "unet": unet}

"""Compiles a training step of a small transformer, shows what each pass did, and compares the result with eager."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.graph import capture

REPORT = Path("demo_report.html")


class Block(nn.Module):
    """One layer: attention and a feed-forward net, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, axis=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A language model of two layers."""

    def __init__(self, vocabulary: int = 100, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embed(tokens)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train_step(model: nn.Module, step: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    loss = step(tokens)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def noisy(x: torch.Tensor) -> torch.Tensor:
    """A program for the later stages: it has a needless copy and a random draw."""
    return x.clone() * torch.rand_like(x) + x.view(x.shape)


def trained(model: nn.Module, tokens: torch.Tensor, **options: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The same step with a compiled copy of the model."""
    own = copy.deepcopy(model)
    own.zero_grad()
    return train_step(own, eductor.compile(own, **options), tokens)


def main() -> int:
    torch.manual_seed(0)
    model = Model()
    tokens = torch.randint(0, 100, (4, 32))
    expected_loss, expected_grads = train_step(model, model, tokens)

    print("Training step of a small transformer, through torch.compile and Eductor:\n")
    recorder = eductor.Recorder()
    loss, grads = trained(model, tokens, profile="exact", instruments=[recorder])
    print(eductor.pass_table(recorder.records))
    same = torch.equal(loss, expected_loss) and all(map(torch.equal, grads, expected_grads))
    print(f"\nloss {loss:.6f}, eager {expected_loss:.6f}; {len(grads)} gradients; bitwise equal to eager: {same}\n")

    if eductor.has_code_generator():
        loss, grads = trained(model, tokens)
        close = all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(grads, expected_grads, strict=True))
        print(f"The same step on kernels of the engine inductor: loss {loss:.6f}, gradients close to eager: {close}\n")
        same = same and close

    print("The joint and post-grad stages on an ATen graph, as a library:\n")
    recorder = eductor.Recorder()
    module = capture(noisy, [torch.randn(8, 8)], "aten")
    eductor.joint_graph_passes(module, options={"instruments": [recorder]})
    eductor.post_grad_passes(module, is_inference=True, options={"instruments": [recorder]})
    print(eductor.pass_table(recorder.records))
    print(f"\n{eductor.graph.to_python(module.graph)}")
    x = torch.randn(8, 8)
    noise = (module(x) - x) / x
    plausible = bool(((noise >= -1e-3) & (noise <= 1.001)).all())
    print(f"x * rand + x stays between x and 2x: {plausible}")

    print("\nWriting a report of the whole compile ...")
    REPORT.write_text(eductor.explain(model, tokens, memory_curve=True).to_html(), encoding="utf-8")
    print(f"Open it in a browser: {REPORT.absolute()}")
    return 0 if same and plausible else 1


if __name__ == "__main__":
    sys.exit(main())

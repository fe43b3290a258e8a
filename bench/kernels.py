"""Benchmarks kernels of the engine `inductor` against Inductor's: GPT-2 and a ResNet, inference and a training step.

python bench/kernels.py [--json] [--device cuda|cpu] [--rounds 15] [--only gpt2,resnet] [--kinds inference,training]

Eager, Inductor, Inductor without its FX passes and Eductor take turns in one process, on the same weights; the median of
the rounds counts. No dropout: without its passes Inductor cannot lower it. Losses of one step are compared with
eager's. It needs transformers. On a GPU the models are of real size, in bfloat16; on a CPU they are small.

In inference both compile the same graph. In training each uses its own partitioner, which decides what the backward
saves or recomputes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import eductor

WITHOUT_PASSES = {"use_pre_grad_passes": False, "use_joint_graph_passes": False, "use_post_grad_passes": False}
BACKENDS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda fn: fn,
    "inductor": lambda fn: torch.compile(fn),
    "inductor, no FX passes": lambda fn: torch.compile(fn, options=WITHOUT_PASSES),
    "eductor": lambda fn: eductor.compile(fn, engine="inductor"),
}


def gpt2(device: str, layers: int = 0) -> tuple[Any, Any]:
    """The model and its loss, with the usual number of layers or another one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    large = device == "cuda"
    config = GPT2Config(
        n_layer=layers or (12 if large else 2),
        n_embd=768 if large else 128,
        n_head=12 if large else 4,
        vocab_size=50257 if large else 1000,
        n_positions=512,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = GPT2LMHeadModel(config)
    ids = torch.randint(0, config.vocab_size, (8, 512) if large else (2, 64), device=device)
    return model, lambda: F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def resnet(device: str, blocks: int = 1) -> tuple[Any, Any]:
    """The model and its loss; on a CPU, with this many blocks in a stage."""
    from transformers import ResNetConfig, ResNetForImageClassification

    large = device == "cuda"
    config = (
        ResNetConfig(num_labels=1000)
        if large
        else ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[blocks, blocks], num_labels=10)
    )
    model = ResNetForImageClassification(config)
    images = torch.randn((32, 3, 224, 224) if large else (4, 3, 64, 64), device=device)
    images = images.to(torch.bfloat16 if large else torch.float32)
    labels = torch.randint(0, 10, (len(images),), device=device)
    return model, lambda: F.cross_entropy(model(images).logits.float(), labels)


MODELS = {"gpt2": gpt2, "resnet": resnet}


def measure(name: str, device: str, rounds: int, *, training: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, loss_of = MODELS[name](device)
    model.to(device, torch.bfloat16 if device == "cuda" else torch.float32).train(training)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    found: dict[str, Any] = {"milliseconds": {}, "first loss": {}, "compile seconds": {}}
    steps = {}
    for backend, make in BACKENDS.items():
        loss = make(loss_of)

        def step(loss: Any = loss) -> Any:
            with torch.set_grad_enabled(training):
                value = loss()
            if training:
                model.zero_grad(set_to_none=True)
                value.backward()
            return value

        model.load_state_dict(state)
        start = time.perf_counter()
        found["first loss"][backend] = step().item()
        found["compile seconds"][backend] = time.perf_counter() - start
        print(f"  {name}, {backend}: compiled in {found['compile seconds'][backend]:.0f} s", file=sys.stderr)
        step()
        steps[backend] = step
    times: dict[str, list[float]] = {backend: [] for backend in steps}
    for _ in range(rounds):
        for backend, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            times[backend].append((time.perf_counter() - start) * 1e3)
    found["milliseconds"] = {backend: statistics.median(values) for backend, values in times.items()}
    return found


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {
        f"{name}, {kind}": measure(name, args.device, args.rounds, training=kind == "training")
        for name in args.only.split(",")
        for kind in args.kinds.split(",")
    }
    if args.json:
        print(json.dumps(found))
        return 0
    for name, result in found.items():
        print(f"{name}, on {args.device}:")
        for backend, milliseconds in result["milliseconds"].items():
            first, seconds = result["first loss"][backend], result["compile seconds"][backend]
            print(f"  {backend:24} {milliseconds:9.2f} ms   loss {first:.5f}   first step {seconds:6.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

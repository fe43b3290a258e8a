"""Benchmarks unaligned matrix products against padded ones, and checks the decisions of `pad_mm`.

python bench/pad_mm.py [--json] [--device cuda|cpu] [--sizes 1024,2048,4096] [--dtypes bfloat16,float32]

Each row is a product in which one dimension is slightly longer than an aligned size. Three candidates take turns: the
product as it is; padded, with the copies, which the pass considers; and on padded operands, which shows the effect of
alignment alone: `reached` is the rate of the product as it is as a fraction of that one. `UNALIGNED_FACTOR` and
`UNALIGNED_RESULT` in `eductor.cost` should be the medians of `reached`, which are printed at the end. Float32 is measured
with TF32 allowed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from eductor.cost import VECTOR, device_of
from eductor.cost.measured import seconds
from eductor.passes.joint.padding.plan import GAIN, NO_PADS, Matrix, MatrixProduct, Pads, plan
from eductor.passes.joint.padding.trial import candidate

LAYOUTS = {"x @ w": ("k", "n"), "x @ w.T": ("k", "k"), "x.T @ w": ("m", "n")}


@dataclass(frozen=True)
class Case:
    """A product in which one dimension is not aligned."""

    product: MatrixProduct
    layout: str
    pads: Pads

    @property
    def unaligned(self) -> str:
        gemm = self.product.gemm()
        factors = "" if gemm.aligned_factors else "factor"
        return factors or ("" if gemm.aligned_result else "result") or "nothing"


def cases(sizes: list[int], dtypes: list[torch.dtype], where: torch.device) -> Iterator[Case]:
    """Each size, dtype, layout and dimension, longer by one element, by an even number, by half a vector."""
    device = device_of(where)
    for size, dtype, layout, dim in itertools.product(sizes, dtypes, LAYOUTS, ("k", "n", "m")):
        unit = VECTOR // dtype.itemsize
        for more in sorted({1, 2, unit // 2}):
            dims = {"m": size, "k": size, "n": size, dim: size + more}
            left, right = LAYOUTS[layout]
            product = MatrixProduct(
                **dims,
                dtype=dtype,
                left=Matrix(left, dims[left]),
                right=Matrix(right, dims[right]),
                device=device,
            )
            yield Case(product, layout, Pads(**{dim: unit - more}))


def measure(case: Case, where: torch.device) -> dict[str, Any]:
    product, pads = case.product, case.pads
    ready = replace(
        product,
        left=replace(product.left, fuses=True),
        right=replace(product.right, fuses=True),
        copies_result=False,
    )
    runs = [candidate(product, NO_PADS, where), candidate(product, pads, where), candidate(ready, pads, where)]
    now, copied, aligned = seconds(runs, where)
    decided = plan(product)
    return {
        "dtype": str(product.dtype).removeprefix("torch."),
        "layout": case.layout,
        "sizes": (product.m, product.k, product.n),
        "pads": str(pads),
        "unaligned": case.unaligned,
        "more": VECTOR // product.dtype.itemsize - max(pads),
        "us": {"as it is": now * 1e6, "with copies": copied * 1e6, "padded": aligned * 1e6},
        "expected us": {"as it is": product.time() * 1e6, "with copies": product.time(pads) * 1e6},
        "reached": aligned / now,
        "decision": str(decided.pads) or "no",
        "reason": decided.reason,
        "right": any(decided.pads) == (now > GAIN * copied),
    }


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The medians of `reached` by dtype, by what is unaligned (a factor, the result alone, nothing), and by the excess."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(f"{row['dtype']}, {row['unaligned']} + {row['more']}", []).append(row["reached"])
    return {kind: statistics.median(values) for kind, values in sorted(found.items())}


def show(row: dict[str, Any]) -> str:
    us, expected = row["us"], row["expected us"]
    return (
        f"{row['dtype']:9} {row['layout']:8} {'x'.join(map(str, row['sizes'])):>15} {row['pads']:7} {row['unaligned']:8}"
        f"{us['as it is']:9.1f} {us['with copies']:9.1f} {us['padded']:9.1f}   {row['reached']:7.2f}   "
        f"{expected['as it is']:9.1f} {expected['with copies']:9.1f}   {row['decision']:8}"
        f"{'' if row['right'] else 'WRONG'}"
    )


HEADER = (
    f"{'dtype':9} {'layout':8} {'m x k x n':>15} {'pads':7} {'of a':8}{'as it is':>9} {'copies':>9} {'padded':>9}   "
    f"{'reached':>7}   {'expected':>9} {'copies':>9}   decision"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="1024,2048,4096" if torch.cuda.is_available() else "64")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    where = torch.device(args.device)
    sizes, dtypes = [int(s) for s in args.sizes.split(",")], [getattr(torch, d) for d in args.dtypes.split(",")]
    rows = []
    if not args.json:
        print(f"on {device_of(where).name}, times in microseconds")
        print(HEADER)
    with torch.no_grad():
        for case in cases(sizes, dtypes, where):
            rows.append(measure(case, where))
            if not args.json:
                print(show(rows[-1]), flush=True)
    summary = {"reached": medians(rows), "right": sum(row["right"] for row in rows), "of": len(rows)}
    if args.json:
        print(json.dumps({"rows": rows, **summary}))
        return 0
    print(f"{summary['right']} of {summary['of']} decisions are right")
    for kind, reached in summary["reached"].items():
        print(f"reached in {kind}: {reached:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

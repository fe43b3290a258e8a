"""Reports of compiles that never were, in the format that the explorer reads: a transformer of any depth."""

from __future__ import annotations

import base64
import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).parents[2] / "src/eductor/observe/report/explorer.html"
PLACE = '<script id="report" type="application/octet-stream;base64"></script>'
SOURCES = [
    "x = self.embed(tokens)",
    "q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)",
    "attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))",
    "x = x + self.down(F.gelu(self.up(self.norm2(x))))",
    "return self.head(x)",
]
PRE_GRAD = ["numpy_compat_normalization", "normalize_node_kwargs_pass", "merge_splits_pass", "fuse_conv_bn"]
JOINT = ["remove_noop_ops", "pass_patterns", "pad_mm", "stable_topological_sort"]
POST_GRAD = ["reorder_for_locality", "group_batch_fusion_passes", "unfuse_bias_add", "stable_topological_sort"]
# What an operation of the captured graph is traced to: the forward's operators, and the backward's.
TRACED = {
    "linear": (["t", "view", "view", "addmm", "view"], ["view", "mm", "t", "mm", "sum"]),
    "layer_norm": (["native_layer_norm", "getitem"], ["native_layer_norm_backward", "getitem"]),
    "gelu": (["gelu"], ["gelu_backward"]),
    "chunk": (["split", "getitem"], ["cat"]),
    "scaled_dot_product_attention": (["flash_attention", "getitem", "detach"], ["flash_attention_backward", "getitem"]),
    "add": (["add"], ["add"]),
    "embedding": (["embedding"], ["embedding_dense_backward"]),
}


class Maker:
    """Counts ids and names, and keeps the modules that nodes point to."""

    def __init__(self) -> None:
        self.ids = 0
        self.names: dict[str, int] = {}
        self.modules: list[dict[str, str]] = []

    def module(self, path: str, kind: str) -> int:
        module = {"path": path, "kind": kind}
        if module not in self.modules[-8:]:
            self.modules.append(module)
        return self.modules.index(module)

    def node(
        self, target: str, inputs: list[dict[str, Any]], op: str = "call_function", **fields: Any
    ) -> dict[str, Any]:
        self.ids += 1
        short = target.split(".")[-2] if target.startswith("torch.ops") else target.split(".")[-1]
        turn = self.names[short] = self.names.get(short, -1) + 1
        name = f"{short}_{turn}" if turn else short
        call = f"{name} = {target}({', '.join(n['name'] for n in inputs)})"
        code = {"placeholder": name, "output": f"return ({inputs[0]['name'] if inputs else ''},)"}.get(op, call)
        return {
            "id": self.ids, "name": name, "op": op, "target": target, "code": code, "inputs": [n["id"] for n in inputs],
            "value": "f32[8, 128, 768]", "shape": ["8", "128", "768"], "dtype": "float32", "stride": ["98304", "768", "1"],
            "device": "cpu", "bytes": 3145728, "source": None, "module": None, "made": None, "from": [], **fields,
        }  # fmt: skip


def captured(make: Maker, layers: int) -> list[dict[str, Any]]:
    """The user's graph: an embedding, layers of attention and a feed-forward net, a head."""
    nodes = [make.node("tokens", [], op="placeholder", source=0)]

    def call(target: str, path: str, kind: str, source: int, *inputs: dict[str, Any]) -> dict[str, Any]:
        nodes.append(make.node(target, list(inputs), source=source, module=make.module(path, kind)))
        return nodes[-1]

    functional = "torch.nn.functional."
    x = call(functional + "embedding", "embed", "Embedding", 0, nodes[0])
    for i in range(layers):
        norm = call(functional + "layer_norm", f"h.{i}.norm1", "LayerNorm", 1, x)
        qkv = call(functional + "linear", f"h.{i}.attn.qkv", "Linear", 1, norm)
        chunk = call("torch.chunk", f"h.{i}.attn", "Attention", 1, qkv)
        attended = call(functional + "scaled_dot_product_attention", f"h.{i}.attn", "Attention", 2, chunk)
        out = call(functional + "linear", f"h.{i}.attn.out", "Linear", 3, attended)
        x = call("operator.add", f"h.{i}", "Block", 3, x, out)
        norm = call(functional + "layer_norm", f"h.{i}.norm2", "LayerNorm", 4, x)
        up = call(functional + "linear", f"h.{i}.up", "Linear", 4, norm)
        gelu = call(functional + "gelu", f"h.{i}", "Block", 4, up)
        down = call(functional + "linear", f"h.{i}.down", "Linear", 4, gelu)
        x = call("operator.add", f"h.{i}", "Block", 4, x, down)
    head = call(functional + "linear", "head", "Linear", 5, x)
    return [*nodes, make.node("output", [head], op="output")]


def traced(make: Maker, nodes: list[dict[str, Any]], backward: bool = True) -> list[dict[str, Any]]:
    """The joint graph: the forward's operators, then the backward's, each with the node that it came from."""
    make.names.clear()
    calls = [n for n in nodes if n["op"] == "call_function"]
    joint = [make.node("tokens", [], op="placeholder", **{"from": [nodes[0]["id"]]})]
    for part, origins in enumerate([calls, calls[::-1]] if backward else [calls]):
        for origin in origins:
            for op in TRACED[origin["target"].split(".")[-1]][part]:
                target = "operator.getitem" if op == "getitem" else f"torch.ops.aten.{op}.default"
                joint.append(make.node(target, [joint[-1]], source=origin["source"], module=origin["module"]))
                joint[-1]["from"] = [origin["id"]]
                joint[-1]["backward"] = part == 1
    return [*joint, make.node("output", [joint[-1]], op="output")]


def delta(**parts: Any) -> dict[str, Any]:
    return {"removed": [], "changed": [], "added": [], "moved": [], **parts}


def pass_run(stage: str, name: str, nodes: int, **fields: Any) -> dict[str, Any]:
    return {
        "address": f"{stage}/{name}", "name": name, "purpose": f"What {name} does, in one sentence.",
        "place": "it wants the form that the passes before it leave", "status": "unchanged", "reason": None,
        "seconds": 0.0004, "nodes_before": nodes, "nodes_after": nodes, "verified": None, "rule": None,
        "matches": [], "rejects": [], "delta": None, **fields,
    }  # fmt: skip


def changing(stage: str, name: str, before: int, matches: list[tuple[str, str, dict[str, Any]]], seconds: float) -> Any:
    """A pass that did what its matches did; each is a rule, the node it starts at, and a delta."""
    whole = delta()
    for _, _, one in matches:
        for part, entries in one.items():
            whole[part] = whole[part] + entries
    listed = [
        {
            "address": f"{stage}/{name}:{rule}@{i}", "rule": rule, "source": 0, "node": node,
            "note": "the sizes in between do not matter", "delta": one,
            "events": [{"kind": "replaced" if one["removed"] else "updated", "node": node, "detail": ""}],
        }
        for i, (rule, node, one) in enumerate(matches)
    ]  # fmt: skip
    return pass_run(
        stage, name, before, status="changed", seconds=seconds, matches=listed, delta=whole, rule=0,
        nodes_after=before + len(whole["added"]) - len(whole["removed"]),
        verified={"ok": True, "text": "same values, shapes, strides and aliases on 4 inputs"},
    )  # fmt: skip


def kwargs_pass(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Spells arguments out: nodes keep their identity, their code changes."""
    found = [n for n in nodes if n["target"].endswith(("linear", "chunk"))]
    matches = [("spell", n["name"], delta(changed=[n | {"code": n["code"].replace("(", "(input=")}])) for n in found]
    return changing("pre_grad", "normalize_node_kwargs_pass", len(nodes), matches, 0.0012)


def reshape_pass(make: Maker, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Two views in a row become one: the reader of the second reads the new one."""
    matches = []
    for a, b, reader in zip(nodes, nodes[1:], nodes[2:], strict=False):
        if a["target"] == b["target"] == "torch.ops.aten.view.default":
            address = f"joint/pass_patterns:one_reshape@{len(matches)}"
            made = {"pass": "joint/pass_patterns", "match": address}
            new = make.node("torch.ops.aten.reshape.default", [], source=a["source"], module=a["module"])
            new |= {"inputs": a["inputs"], "made": made, "from": [a["id"], b["id"]], "backward": a["backward"]}
            new["code"] = f"{new['name']} = {a['code'].partition(' = ')[2].replace('view', 'reshape', 1)}"
            inputs = [new["id"] if i == b["id"] else i for i in reader["inputs"]]
            read = reader | {"code": reader["code"].replace(f"({b['name']}", f"({new['name']}"), "inputs": inputs}
            one = delta(removed=[a["id"], b["id"]], changed=[read], added=[{"after": a["inputs"][0], "node": new}])
            matches.append(("one_reshape", a["name"], one))
    return changing("joint", "pass_patterns", len(nodes), matches, 0.0142)


def noop_pass(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """A detach goes away, and what read it reads its operand."""
    byid = {n["id"]: n for n in nodes}
    matches = []
    for gone, reader in pairwise(nodes):
        if "detach" in gone["target"]:
            operand = byid[gone["inputs"][0]]
            inputs = [operand["id"] if i == gone["id"] else i for i in reader["inputs"]]
            read = reader | {
                "code": reader["code"].replace(f"({gone['name']}", f"({operand['name']}"),
                "inputs": inputs,
            }
            matches.append(("copy", gone["name"], delta(removed=[gone["id"]], changed=[read])))
    return changing("joint", "remove_noop_ops", len(nodes), matches, 0.0039)


def locality_pass(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Renames a node and moves another: neither is a change of what is computed."""
    last, mover = nodes[-2], nodes[2]
    renamed = last | {"name": "logits", "code": last["code"].replace(last["name"], "logits", 1)}
    reader = nodes[-1] | {"code": "return (logits,)"}
    one = delta(changed=[renamed, reader], moved=[{"id": mover["id"], "after": nodes[4]["id"]}])
    return changing("post_grad", "reorder_for_locality", len(nodes), [("move", mover["name"], one)], 0.0008)


def apply(nodes: list[dict[str, Any]], one: dict[str, Any]) -> list[dict[str, Any]]:
    """A graph behind a delta, slowly."""
    changed = {n["id"]: n for n in one["changed"]}
    result = [changed.get(n["id"], n) for n in nodes if n["id"] not in one["removed"]]
    for entry in one["added"]:
        at = next((i for i, n in enumerate(result) if n["id"] == entry["after"]), -1)
        result.insert(at + 1, changed.get(entry["node"]["id"], entry["node"]))
    return result


def stage(
    number: int, name: str, role: str, start: list[dict[str, Any]], passes: list[Any], seconds: float, **facts: Any
) -> dict[str, Any]:
    result = passes[-1]["nodes_after"] if passes else len(start)
    return {
        "key": f"{number}/{name}/{role}", "name": name, "role": role, "seconds": seconds, "failure": None,
        "facts": facts, "start": start, "result": result, "passes": passes,
    }  # fmt: skip


def filled(name: str, order: list[str], passes: list[Any], extra: int, nodes: int) -> list[Any]:
    """The passes of a stage in their order: those that did something, the others, and more of the latter."""
    done = {p["name"]: p for p in passes}
    miss = {
        "rule": "batch_linear",
        "nodes": ["addmm"],
        "reason": "no other call has the same form and is independent of it",
    }
    listed, now = [], nodes
    for each in [*order, *(f"custom_pass_{i}" for i in range(extra))]:
        skipped = {"status": "skipped", "reason": "only for inference"} if each == "fuse_conv_bn" else {}
        rejects = [miss, miss | {"nodes": ["addmm_1"]}] if each in ("pad_mm", "group_batch_fusion_passes") else []
        listed.append(done.get(each) or pass_run(name, each, now, rejects=rejects, **skipped))
        now = listed[-1]["nodes_after"]
    return listed


def parted(make: Maker, nodes: list[dict[str, Any]], backward: bool) -> list[dict[str, Any]]:
    """The forward or the backward of a joint graph, as nodes of their own."""
    make.names.clear()
    picked = [n for n in nodes if n.get("backward", False) == backward and n["op"] == "call_function"]
    part = [make.node("tangents" if backward else "tokens", [], op="placeholder", **{"from": [nodes[0]["id"]]})]
    for n in picked:
        fields = {"source": n["source"], "module": n["module"], "from": [n["id"]]}
        part.append(make.node(n["target"], [part[-1]], **fields))
    return [*part, make.node("output", [part[-1]], op="output")]


def plan(joint: list[dict[str, Any]]) -> dict[str, Any]:
    """A partition that saves each product and computes each gelu again."""
    forward = [n for n in joint if not n.get("backward", True)]

    def value(n: dict[str, Any], reason: str, seconds: float) -> dict[str, Any]:
        fields = {"seconds": seconds, "instead": 3 * seconds, "reason": reason, "ahead": False}
        return {"name": n["name"], "node": n["id"], "bytes": n["bytes"], **fields}

    saved = [value(n, "computing it again costs a product", 1e-5) for n in forward if "addmm" in n["target"]]
    again = [value(n, "cheaper than reading it", 2e-6) for n in forward if "gelu" in n["target"]]
    live, line = 0, []
    for n in joint:
        live += 1 << 20 if not n.get("backward") else -(1 << 19)
        phase = "backward" if n.get("backward") else "forward"
        line.append({"phase": phase, "node": n["id"], "name": n["name"], "live": max(live, 0)})
    points = [
        {"budget": b / 5, "bytes": b * 2_000_000, "seconds": 0.002 - b * 0.0003, "peak": 4_000_000 + b * 2_000_000}
        for b in range(6)
    ]
    curve = {"points": points, "chosen": points[-2]}
    peak = max(m["live"] for m in line)
    return {"budget": 0.8, "peak": peak, "saved": saved, "again": again, "others": [], "curve": curve, "timeline": line}


def kernels(parts: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A kernel for two operators in a row; a product is a call of a library."""
    made = []
    for role, nodes in parts.items():
        calls = [n for n in nodes if n["op"] == "call_function"]
        for i in range(0, len(calls), 2):
            names = "_".join(n["target"].split(".")[-2] for n in calls[i : i + 2])
            code = f"@triton.jit\ndef triton_{names}(in_ptr, out_ptr, n, BLOCK: tl.constexpr):\n    at = tl.program_id(0) * BLOCK\n"
            kind = "extern" if "mm" in names else "triton"
            fields = {"language": kind, "code": None if kind == "extern" else code}
            made.append(
                {"name": f"{kind}_{names}_{i}", "role": role, "nodes": [n["id"] for n in calls[i : i + 2]], **fields}
            )
    return made


def graph(make: Maker, number: int, layers: int, idle: int) -> dict[str, Any]:
    """One graph through all stages; `idle` passes more, spread over the stages, change nothing."""
    first = captured(make, layers)
    spelled = kwargs_pass(first)
    joint = traced(make, first)
    clean = noop_pass(joint)
    later = apply(joint, clean["delta"])
    reshaped = reshape_pass(make, later)
    end = apply(later, reshaped["delta"])
    parts = {"forward": parted(make, end, False), "backward": parted(make, end, True)}
    share = idle // 4
    pre = filled("pre_grad", PRE_GRAD, [spelled], share, len(first))
    stages = [
        stage(number, "pre_grad", "captured", first, pre, 0.0095),
        stage(number, "autograd", "captured", [], [], 0.2469, nodes=len(joint), gradients=27),
        stage(number, "joint", "joint", joint, filled("joint", JOINT, [clean, reshaped], share, len(joint)), 0.0197),
        stage(
            number,
            "partition",
            "joint",
            [],
            [],
            0.0254,
            forward_nodes=len(parts["forward"]),
            backward_nodes=len(parts["backward"]),
        ),
    ]
    for role, nodes in parts.items():
        did = [locality_pass(nodes)] if role == "forward" else []
        stages.append(
            stage(number, "post_grad", role, nodes, filled("post_grad", POST_GRAD, did, share, len(nodes)), 0.0041)
        )
    stages += [stage(number, "engine", role, [], [], 0.31, engine="inductor") for role in parts]
    source = f"train.py:10: {SOURCES[0]}"
    words = {
        "function": "Model",
        "kind": "first",
        "description": "Model.forward",
        "source": source,
        "compile_id": f"{number}/0",
    }
    return {"number": number, **words, "stages": stages, "partition": plan(end), "kernels": kernels(parts)}


def record(layers: int = 2, graphs: int = 1, idle: int = 0) -> dict[str, Any]:
    """A whole report."""
    make = Maker()
    made = [graph(make, number, layers, idle) for number in range(1, graphs + 1)]
    rule = {
        "name": "one_reshape",
        "file": "eductor/passes/joint/one_reshape.py",
        "line": 12,
        "code": "@rule\ndef one_reshape(x):\n    return view(view(x))\n",
    }
    sources = [{"file": "/home/me/train.py", "line": 10 + i, "code": code} for i, code in enumerate(SOURCES)]
    return {
        "schema": "eductor.report/1", "eductor": "0.1.0", "torch": "2.13.0", "title": "train.py",
        "created": "2026-01-01T12:00:00", "seconds": 1.47, "sources": sources, "modules": make.modules, "rules": [rule],
        "warnings": [{"graph": 1, "text": "a random draw in the forward is kept as it is"}], "graphs": made,
    }  # fmt: skip


def page_of(report: dict[str, Any]) -> str:
    """The page of a report, as Python writes it."""
    packed = base64.b64encode(gzip.compress(json.dumps(report, separators=(",", ":")).encode(), mtime=0)).decode()
    template = TEMPLATE.read_text()
    assert template.count(PLACE) == 1
    return template.replace(PLACE, PLACE.replace("></", f">{packed}</"))

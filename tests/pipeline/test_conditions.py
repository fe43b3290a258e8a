"""When a pass runs at all: `when=`, `devices=`, `inference_only=`, the profile; and what the record says if not."""

from __future__ import annotations

import pytest
import torch
from toys import graph_of, named, plain_cos, plain_nothing, run, sin_to_cos

import eductor
from eductor.errors import EductorWarning, PassFailed
from eductor.graph.no import No
from eductor.pipeline import Context, Pipeline, Recorder


def outcome(pass_, **options):
    (record,) = run(graph_of(), pass_, **options)
    assert not record.changed
    assert record.nodes_before == record.nodes_after
    return record.status, record.reason


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, ("unchanged", "")),
        (False, ("skipped", "its condition `when` does not hold")),
        (No("it is Monday"), ("skipped", "it is Monday")),
        ("it is Tuesday", ("skipped", "it is Tuesday")),
        ("", ("skipped", "its condition `when` does not hold")),
        (None, ("skipped", "its condition `when` does not hold")),
        (torch.tensor(True), ("unchanged", "")),
    ],
)
def test_when_says_whether_and_why_not(answer, expected):
    assert outcome(named("mine", when=lambda context: answer)) == expected


def test_when_is_asked_with_the_context():
    asked: list[Context] = []
    mine = named("mine", when=lambda context: asked.append(context) or True)
    run(graph_of(), mine, is_inference=True, fallback_random=True)
    assert (asked[0].stage, asked[0].is_inference, asked[0].options.fallback_random) == ("joint", True, True)


def test_a_condition_that_raises_is_a_failure_of_the_pass(tmp_path):
    broken = named("mine", when=lambda context: 1 / 0)
    with pytest.warns(EductorWarning, match=r"joint/mine failed: ZeroDivisionError"):
        records = run(graph_of(), broken, plain_nothing, repro_dir=tmp_path)
    assert [r.status for r in records] == ["failed", "unchanged"]
    with pytest.raises(PassFailed, match="joint/mine"):
        run(graph_of(), broken, strict=True, repro_dir=tmp_path)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("cpu", ("unchanged", "")),
        (["cuda", "cpu"], ("unchanged", "")),
        ("cuda", ("skipped", "only on cuda; the graph is on cpu")),
        (("cuda", "xpu"), ("skipped", "only on cuda, xpu; the graph is on cpu")),
    ],
)
def test_devices(devices, expected):
    assert outcome(named("mine", devices=devices)) == expected


def test_a_graph_on_no_device_at_all():
    module = torch.fx.symbolic_trace(lambda: 1)
    (record,) = run(module, named("mine", devices="cuda"))
    assert record.reason == "only on cuda; the graph is on no device"


def test_inference_only():
    mine = named("mine", inference_only=True)
    assert outcome(mine) == ("skipped", "only for inference")
    assert outcome(mine, is_inference=True) == ("unchanged", "")


@pytest.mark.parametrize("numerics", ["reassociates", "redraws", "changes"])
def test_the_profile_exact_runs_exact_passes_alone(numerics):
    reason = f"the profile exact allows only exact passes; this one is {numerics}"
    other = named("mine", numerics=numerics, on=False)
    assert outcome(other, profile="exact") == ("skipped", reason)
    assert outcome(other, profile="fast") == ("unchanged", "")
    assert outcome(named("mine"), profile="exact") == ("unchanged", "")


def test_nobody_vouches_for_a_plain_function_so_the_profile_exact_skips_it():
    status, reason = outcome(plain_cos, profile="exact")
    assert status == "skipped"
    assert "reassociates" in reason


def test_random_numbers_are_eagers_if_asked_for():
    def noisy(x):
        return x + torch.rand_like(x)

    x = torch.randn(4)
    for options in ({"fallback_random": True}, {"profile": "exact"}):
        recorder = Recorder()
        module = graph_of(noisy, x)
        eductor.joint_graph_passes(module, options={**options, "instruments": [recorder]})
        torch.manual_seed(3)
        got = module(x)
        torch.manual_seed(3)
        assert torch.equal(got, noisy(x))
        record = next(r for r in recorder.records if r.name == "replace_random_passes")
        assert record.status == "skipped"
        assert ("fallback_random" if "fallback_random" in options else "exact") in record.reason


def test_a_skipped_pass_is_recorded_in_its_place():
    records = run(graph_of(), named("first"), named("second", when=lambda c: "no"), sin_to_cos)
    assert [(r.name, r.status) for r in records] == [
        ("first", "unchanged"),
        ("second", "skipped"),
        ("sin_to_cos", "changed"),
    ]


def test_semantics_change_only_by_request():
    assert not any(s.name == "sin_to_cos" for s in Pipeline.default().steps)
    module = graph_of()
    eductor.joint_graph_passes(module, options={"passes": [sin_to_cos]})
    assert module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)

"""The tests of `make test-fast`, room by room. `python tests/fast.py` prints their files."""

from __future__ import annotations

FAST: dict[str, tuple[str, ...]] = {
    "progress": ("progress/test_line.py", "progress/test_shown_stages.py"),
    "errors": ("behaviour/test_errors.py",),
    "compat": ("test_compat.py",),
    "version": ("test_api.py",),
    "options": ("pipeline/test_options.py",),
    "ops": ("ops/test_cut_mm.py", "ops/test_laid_out.py"),
    "graph": (
        "graph/test_bind.py",
        "graph/test_capture_and_laws.py",
        "graph/test_compare.py",
        "graph/test_core_rewriter.py",
        "graph/test_effects.py",
        "graph/test_meta.py",
        "graph/test_printer.py",
        "graph/test_rewriter.py",
    ),
    "pipeline": (
        "pipeline/test_declarations.py",
        "pipeline/test_failures.py",
        "pipeline/test_instruments.py",
        "pipeline/test_pipeline_value.py",
        "pipeline/test_registry_order.py",
        "pipeline/test_slots.py",
    ),
    "cost": ("cost/test_cost.py",),
    "views": ("views/test_index_map.py",),
    "patterns": ("patterns/test_language.py", "patterns/test_why_not.py"),
    "regions": ("regions/test_regions.py",),
    "program": ("partition/test_split.py",),
    "passes": ("passes/test_documented_order.py", "passes/test_remove_noop_ops.py"),
    "launches": ("launches/test_planted_launches.py", "launches/test_replayed_calls.py"),
    "autograd": ("autograd/test_joint.py",),
    "partition": ("partition/test_max_flow.py", "partition/test_plan.py"),
    "packing": ("test_packing.py",),
    "engines": ("engines/test_engines.py",),
    "cache": ("cache/test_store.py",),
    "verification": ("observe/test_execution.py", "observe/test_verify.py"),
    "compiler": ("test_compile.py",),
    "observe": ("observe/test_explain.py",),
    "measure": ("test_bench.py",),
    "stages": ("test_stages.py",),
    "testing": ("passes/test_contract.py",),
    "cli": ("test_cli.py",),
    "__init__": ("test_api.py", "test_rooms.py"),
    "__main__": ("pipeline/test_plugins.py",),
}


if __name__ == "__main__":
    print("\n".join(sorted({f"tests/{file}" for files in FAST.values() for file in files})))

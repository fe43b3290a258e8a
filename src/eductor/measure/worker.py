"""One measurement in a separate process, free of state that others leave."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from eductor.measure.cases import Case, case, makers, ways
from eductor.measure.steady import TimedModel, steady, synchronize
from eductor.pipeline.recorder import Recorder


def first(of: Case, way: str, device: str, *, records: bool) -> dict[str, Any]:
    """Times the compile and first step; `records` adds the time in each stage, and bypasses the cache on disk."""
    recorder = Recorder()
    synchronize()
    started = time.perf_counter()
    TimedModel(of, ways(device, *([recorder] if records else []))[way]).run()
    synchronize()
    seconds = time.perf_counter() - started
    stages: dict[str, float] = {}
    nodes: dict[str, int] = {}
    for stage in recorder.stages:
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.seconds
        nodes[f"{stage.name}, {stage.role}"] = nodes.get(f"{stage.name}, {stage.role}", 0) + stage.nodes
    return {"seconds": seconds, "stages": stages, "nodes": nodes}


def main(job: dict[str, Any]) -> dict[str, Any]:
    of = case(makers(job["source"])[job["model"]], job["device"], training=job["training"])
    if job["way"] is not None:
        return first(of, job["way"], job["device"], records=job["records"])
    compared = {way: compile for way, compile in ways(job["device"]).items() if way in job["ways"]}
    return steady(of, compared, job["rounds"])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(sys.argv[1]))))

"""What tests of the partitioner share: an engine that makes computing again cheap, and a look at the plan of a graph."""

from __future__ import annotations

import eductor
from eductor.partition import Plan

FUSING = eductor.engines.Engine("fusing", eductor.engines.ATEN.compile, fuses=True)
"""Priced as if pointwise operators cost nothing, so that all of them are computed again; run by ATen."""


class Saved(eductor.Instrument):
    """The plan of the last graph."""

    wants_details = True

    def after_stage(self, run):
        if run.name == "partition":
            self.plan = Plan.from_json(run.facts["plan"])

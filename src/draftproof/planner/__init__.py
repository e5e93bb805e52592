"""Whether to speculate and how far: measured costs, the draft length, the predicted speed-up.

`costs` measures, `length` decides while a request runs, `predict` tells beforehand, on rounds that
`replay` makes of recorded ones. Each stands on `theory`, and none knows a runtime.
"""

from draftproof.planner.costs import CostCurve, Costs, draft_cost, measure, measure_costs
from draftproof.planner.length import Auto, Fixed
from draftproof.planner.measured import Measured
from draftproof.planner.predict import Plan, Prediction, predict
from draftproof.planner.replay import PromptRun, Replay

__all__ = [
    "Auto",
    "CostCurve",
    "Costs",
    "Fixed",
    "Measured",
    "Plan",
    "Prediction",
    "PromptRun",
    "Replay",
    "draft_cost",
    "measure",
    "measure_costs",
    "predict",
]

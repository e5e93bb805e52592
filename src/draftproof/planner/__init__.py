"""Whether to speculate and how far: measured costs, the draft length, the predicted speed-up.

`costs` says what passes cost; `timing` measures that, as do `heads` and `threads`; `kept` and
`profile` keep what was measured; `running` and `drift` follow what passes really take; `length`
decides while a request runs, `reading` when a draft model reads, `guide` while a draft grows, and
`balance` says what drafts may still lose; `shape` says which tree is worth drafting and `forks`
what a request learned of trees; `predict` tells beforehand, from rounds that were played and
rounds that `replay` makes of them.
Each stands on `theory`, and none knows a runtime.
"""

from draftproof.planner.costs import CostCurve, Costs
from draftproof.planner.heads import best_head, measure_heads
from draftproof.planner.kept import KeptFile, PairKey, forget
from draftproof.planner.length import Auto, Fixed
from draftproof.planner.measured import Measured, early_costs, early_curve
from draftproof.planner.predict import AdaptiveRun, Plan, Prediction, predict, predict_adaptive
from draftproof.planner.profile import Profile, ProfileFile
from draftproof.planner.replay import PromptRun, Replay
from draftproof.planner.shape import Shape, best_tree
from draftproof.planner.threads import best_threads, measure_threads
from draftproof.planner.timing import draft_cost, measure, measure_costs

__all__ = [
    "AdaptiveRun",
    "Auto",
    "CostCurve",
    "Costs",
    "Fixed",
    "KeptFile",
    "Measured",
    "PairKey",
    "Plan",
    "Prediction",
    "Profile",
    "ProfileFile",
    "PromptRun",
    "Replay",
    "Shape",
    "best_head",
    "best_threads",
    "best_tree",
    "draft_cost",
    "early_costs",
    "early_curve",
    "forget",
    "measure",
    "measure_costs",
    "measure_heads",
    "measure_threads",
    "predict",
    "predict_adaptive",
]

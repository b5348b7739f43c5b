"""cortx: real-time explanations for any model.

game = cortx.Game(model, reference=X_train, output="probability")
labels = cortx.shapley(game, X_some)
explainer = cortx.CoRTX(seed=0).fit(game, X_train, labels=labels)
explanation = explainer.explain(X_test)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cortx.version import __version__

if TYPE_CHECKING:
    from cortx import distributed as distributed
    from cortx import estimators as estimators
    from cortx import metrics as metrics
    from cortx import portable as portable
    from cortx import ray as ray
    from cortx import rivals as rivals
    from cortx import spark as spark
    from cortx.errors import CortxError as CortxError
    from cortx.estimators.shapley import shapley as shapley
    from cortx.explainer.artifact import load as load
    from cortx.explainer.explainer import CoRTX as CoRTX
    from cortx.explainer.tree_explainer import TreeExplainer as TreeExplainer
    from cortx.explanation import Explanation as Explanation
    from cortx.games.calls import Calls as Calls
    from cortx.games.game import Game as Game
    from cortx.games.players import Patches as Patches
    from cortx.games.players import Segments as Segments
    from cortx.interfaces import plots as plots
    from cortx.training.surrogate import Surrogate as Surrogate

# Public name -> where it lives; imported on first use, so that `cortx --help` never waits for torch.
_LAZY = {
    "Calls": "cortx.games.calls:Calls",
    "CoRTX": "cortx.explainer.explainer:CoRTX",
    "CortxError": "cortx.errors:CortxError",
    "Explanation": "cortx.explanation:Explanation",
    "Game": "cortx.games.game:Game",
    "Patches": "cortx.games.players:Patches",
    "Segments": "cortx.games.players:Segments",
    "Surrogate": "cortx.training.surrogate:Surrogate",
    "TreeExplainer": "cortx.explainer.tree_explainer:TreeExplainer",
    "distributed": "cortx.distributed",
    "estimators": "cortx.estimators",
    "load": "cortx.explainer.artifact:load",
    "metrics": "cortx.metrics",
    "plots": "cortx.interfaces.plots",
    "portable": "cortx.portable",
    "ray": "cortx.ray",
    "rivals": "cortx.rivals",
    "shapley": "cortx.estimators.shapley:shapley",
    "spark": "cortx.spark",
}

__all__ = [
    "Calls",
    "CoRTX",
    "CortxError",
    "Explanation",
    "Game",
    "Patches",
    "Segments",
    "Surrogate",
    "TreeExplainer",
    "__version__",
    "distributed",
    "estimators",
    "load",
    "metrics",
    "plots",
    "portable",
    "ray",
    "rivals",
    "shapley",
    "spark",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cortx' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    loaded = importlib.import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

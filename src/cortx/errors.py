"""The errors cortx raises on purpose, and its warnings. Catch `CortxError`, filter `CortxWarning`, to have them all."""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "BudgetError",
    "CategoricalHint",
    "ClippedOutputs",
    "CortxError",
    "CortxWarning",
    "EngineError",
    "FingerprintError",
    "InputError",
    "MissingDependencyError",
    "ModelError",
    "NotFittedError",
    "StorageError",
    "StrangeRows",
]


class CortxError(Exception):
    """Anything cortx refuses to do, with what came, what is allowed and what to do."""


class InputError(CortxError, ValueError):
    """A table, an argument or a setting that cannot be used."""


class BudgetError(InputError):
    """A number of model evaluations that is too small for what was asked, or would explode."""


class ModelError(CortxError, RuntimeError):
    """The model under explanation raised, or returned something that is not a finite number per row."""


class NotFittedError(CortxError, ValueError, AttributeError, RuntimeError):
    """The explainer has not been fitted or loaded yet.

    An AttributeError too, as scikit-learn's is: ``hasattr(explainer, "costs_")`` is False before the fit.
    """


class ArtifactError(CortxError):
    """A saved explainer that is missing, damaged or not ours."""


class FingerprintError(ArtifactError):
    """A saved explainer was loaded with a model other than the one it was fitted for."""


class StorageError(CortxError, OSError):
    """A file that cannot be read or written: a damaged one, a full disk, a folder that is not there."""


class EngineError(CortxError, RuntimeError):
    """Workers that could not be started, or died again and again at the same work."""


class MissingDependencyError(CortxError, ImportError):
    """An optional library is needed for what was asked."""


class CortxWarning(UserWarning):
    """Something that works, but perhaps not as you think."""


class ClippedOutputs(CortxWarning):
    """Log-odds that are not the model's own, because only its probabilities are known and some are 0 or 1."""


class CategoricalHint(CortxWarning):
    """Numeric columns that look like codes of categories; ``categorical=()`` says that they are none."""


class StrangeRows(CortxWarning):
    """Rows outside of what training saw, where an explainer guesses and bounds promise nothing."""


def need(module: str, why: str, extra: str) -> MissingDependencyError:
    """The error for an optional library that is not installed."""
    return MissingDependencyError(
        f"{why} needs {module}, which is not installed; run: pip install 'cortx-explain[{extra}]'"
    )

"""Estimators turn games into explanation labels with standard errors and their cost."""

from __future__ import annotations

from cortx.estimators.block import Block, Estimate, Estimator
from cortx.registry import Registry

ESTIMATORS: Registry[Estimator] = Registry(
    "estimator",
    {
        "exact": "cortx.estimators.exact:Exact",
        "kernel": "cortx.estimators.kernel_shap:KernelShap",
        "odd": "cortx.estimators.odd_shap:OddShap",
        "unbiased": "cortx.estimators.unbiased:Unbiased",
        "permutation": "cortx.estimators.permutation:Permutation",
        "banzhaf": "cortx.estimators.banzhaf:Banzhaf",
        "amortized": "cortx.estimators.amortized:Amortized",
    },
)

__all__ = ["ESTIMATORS", "Block", "Estimate", "Estimator"]

"""Rivals: other methods behind the same `explain`, so that any metric compares any two."""

from __future__ import annotations

from cortx.registry import Registry
from cortx.rivals.base import Rival

RIVALS: Registry[Rival] = Registry(
    "rival",
    {
        "kernel": "cortx.rivals.sampled:Sampled",
        "permutation": "cortx.rivals.sampled:SampledPermutation",
        "shap-kernel": "cortx.rivals.peers:ShapKernel",
        "shap-permutation": "cortx.rivals.peers:ShapPermutation",
        "shap-exact": "cortx.rivals.peers:ShapExact",
        "captum-kernel": "cortx.rivals.peers:CaptumKernel",
        "captum-sampling": "cortx.rivals.peers:CaptumSampling",
        "shapiq-kernel": "cortx.rivals.peers:ShapiqKernel",
        "fastshap": "cortx.rivals.fastshap:FastSHAP",
        "fastshap-images": "cortx.rivals.fastshap_images:ImageFastSHAP",
        "supervised": "cortx.rivals.supervised:SupervisedRTX",
        "l2x": "cortx.rivals.l2x:L2X",
        "saliency": "cortx.rivals.gradients:Saliency",
        "integrated-gradients": "cortx.rivals.gradients:IntegratedGradients",
        "smoothgrad": "cortx.rivals.gradients:SmoothGrad",
        "gradcam": "cortx.rivals.gradients:GradCAM",
        "deepshap": "cortx.rivals.gradients:DeepSHAP",
        "rise": "cortx.rivals.rise:RISE",
        "xrai": "cortx.rivals.xrai:XRAI",
    },
)

IMAGE_RIVALS = ("saliency", "integrated-gradients", "smoothgrad", "gradcam", "deepshap", "rise", "xrai")
"""Those that explain one class of images, by their pixels."""

__all__ = ["IMAGE_RIVALS", "RIVALS", "Rival"]

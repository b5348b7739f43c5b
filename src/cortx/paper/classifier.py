"""The image classifier under explanation: a ResNet-18 trained from scratch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cortx.progress import progress_bar
from cortx.seeding import torch_generator
from cortx.training.augment import moved
from cortx.training.resnet import ResNet18, settle

BATCH = 512
PEAK = 0.4
"""The highest learning rate, for batches of this size."""
DECAY = 5e-4
CUT = 8
"""The side of the square that is cut out of every training image."""
NOISE = 0.03
"""The largest deviation of the noise on a training image: JPEG images and exact ones differ by about as much."""


def train_classifier(
    images: Any,
    labels: Any,
    *,
    epochs: int = 100,
    width: int = 64,
    seed: int = 0,
    device: str = "cpu",
    shift: int = 4,
    flip: bool = True,
    batch: int = BATCH,
    show: bool | None = None,
) -> ResNet18:
    """SGD with momentum on uint8 images (n, channels, height, width), moved, mirrored, cut and with noise.

    The learning rate rises over the first fifth and then falls to zero.
    """
    pixels, targets = torch.as_tensor(images).to(device), torch.as_tensor(labels).to(device)
    n_classes = int(targets.max()) + 1
    network = ResNet18(pixels.shape[1], n_classes, width, generator=torch_generator(seed, "target"))
    settle(network, device)
    on_gpu = torch.device(device).type == "cuda"
    size = min(batch, len(pixels))
    per_epoch = len(pixels) // size
    steps, step = epochs * per_epoch, 0
    decayed = [p for p in network.parameters() if p.ndim > 1]
    rest = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    peak = PEAK * size / BATCH
    optimizer = torch.optim.SGD(groups, lr=peak, momentum=0.9, nesterov=True)
    generator = torch_generator(seed, "classifier", device=device)
    network.train()
    with progress_bar("training the classifier", steps, show=show) as advance:
        for _ in range(epochs):
            order = torch.randperm(len(pixels), generator=generator, device=pixels.device)
            for number in range(per_epoch):
                progress = step / steps
                for group in optimizer.param_groups:
                    group["lr"] = peak * (progress / 0.2 if progress < 0.2 else (1 - progress) / 0.8)
                index = order[number * size : (number + 1) * size]
                inputs = varied(pixels[index], shift, flip, generator)
                if on_gpu:
                    inputs = inputs.to(memory_format=torch.channels_last)
                with torch.autocast(inputs.device.type, torch.bfloat16, enabled=on_gpu):
                    logits = network(inputs)
                loss = F.cross_entropy(logits.float(), targets[index])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                step += 1
                advance(1, "")
    return network.eval().requires_grad_(False)


def varied(pixels: Tensor, shift: int, flip: bool, generator: torch.Generator) -> Tensor:
    """uint8 images as floats 0..1: moved (the border filled with zeros), mirrored, a square cut out, noise added."""
    n, _, height, width = pixels.shape
    device = pixels.device
    inside = moved(pixels, flip=flip, shift=shift, generator=generator, fill=0)
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    top, left = (torch.randint(side, (n, 1, 1), generator=generator, device=device) for side in (height, width))
    cut = ((rows[:, None] - top).abs() < CUT // 2) & ((columns - left).abs() < CUT // 2)
    images = inside.float() / 255 * ~cut[:, None]
    strength = NOISE * torch.rand((n, 1, 1, 1), generator=generator, device=device)
    noise = torch.randn(images.shape, generator=generator, device=device)
    return (images + strength * noise).clamp(0, 1)


@torch.inference_mode()
def accuracy(network: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images, (n, channels, height, width) in 0..1, whose class is found."""
    hits = sum(
        int((network(images[start : start + 256]).argmax(dim=1) == labels[start : start + 256]).sum())
        for start in range(0, len(images), 256)
    )
    return hits / len(images)

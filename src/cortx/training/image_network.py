"""The explainer network for images: a convolutional encoder, and a head that answers for every part of the image."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from cortx.games.absent import channels_first, own_image
from cortx.games.players import ImagePlayers
from cortx.images import ImageSchema
from cortx.seeding import torch_generator
from cortx.training.decoder import DecoderHead
from cortx.training.difficulty import Difficulty
from cortx.training.encoders import EncoderConfig, HeadConfig, mlp
from cortx.training.heads import HEADS
from cortx.training.network import Answer, ExplainerNetwork
from cortx.training.resnet import ResNet18, inference_copy, stem_stride

PIXELS_CPU, PIXELS_GPU = 2**18, 2**23
"""Numbers of images in one pass, divided by the square of the stem's stride: about 85 and 2,700 images of CIFAR-10,
27 and 890 of 224 x 224 pixels in colour."""
NUMBERS_COMPARED = 2**24
"""Numbers of images that are compared with their reference at a time."""


class ImageFeatures(nn.Module):
    """Flat images, (images, numbers), to (images, channels, height, width): the numbers that the model sees too."""

    reference: Tensor
    pixel_player: Tensor

    def __init__(self, schema: ImageSchema, players: ImagePlayers, absent: Tensor, own_reference: str | None) -> None:
        super().__init__()
        self.schema, self.own_reference, self.n_players = schema, own_reference, len(players)
        self.register_buffer("reference", absent.to(torch.float32))
        self.register_buffer("pixel_player", torch.from_numpy(players.pixel_player).flatten())

    def forward(self, codes: Tensor) -> Tensor:
        return channels_first(codes.to(torch.float32), self.schema)

    def active(self, codes: Tensor) -> Tensor:
        """(images, players): whether any pixel of a part differs from its reference."""
        codes = codes.to(torch.float32)
        absent = self.reference if self.own_reference is None else own_image(self.own_reference, codes, self.schema)
        changed = channels_first((codes != absent), self.schema).any(dim=1).flatten(1)
        result = torch.zeros(len(codes), self.n_players, device=codes.device)
        return result.index_add_(1, self.pixel_player, changed.to(torch.float32)) > 0


class ImageNetwork(ExplainerNetwork):
    """Images, (images, numbers) float32, to attributions in one forward pass.

    The encoder is a ResNet-18. A head of kind "decoder" reads the maps behind all its stages; one of kind "mlp" (the
    paper) the pooled last map, which is the latent explanation in both.
    """

    small = False

    def __init__(
        self,
        features: ImageFeatures,
        players: ImagePlayers,
        n_outputs: int,
        *,
        encoder: EncoderConfig,
        head: HeadConfig,
        seed: int,
    ) -> None:
        nn.Module.__init__(self)
        self.features: Any = features
        self.path = None
        self._copies: tuple[Any, Any] | None = None
        self.register_buffer("player_of", torch.from_numpy(players.column_player))
        self.n_players, self.n_outputs = len(players), n_outputs
        stride = encoder.stride or stem_stride(features.schema.size)
        trunk = ResNet18(
            features.schema.n_channels, n_outputs, encoder.width, stride, generator=torch_generator(seed, "encoder")
        )
        self.encoder: Any = trunk
        latent = trunk.widths[-1]
        generator = torch_generator(seed, "head", "attribution")
        made: nn.Module
        if head.kind == "decoder":
            made = DecoderHead(trunk.widths, players, n_outputs, head, generator)
        else:
            made = HEADS["attribution"](latent, self.n_players, n_outputs, head, generator)
        self.heads = nn.ModuleDict({"attribution": made})
        self.register_buffer("total_scale", torch.ones(n_outputs))
        self.difficulty = Difficulty(self.attribution.n_hidden, self.n_players, n_outputs)
        self.total_model = mlp([latent, 128, n_outputs], torch_generator(seed, "total"))

    def reduced(self) -> AbstractContextManager[Any]:
        """Reduced precision on a GPU: bfloat16 to learn, float16 to answer."""
        # While a part is trained the whole is not in training mode: what is frozen keeps its running means.
        learning = self.training or self.encoder.training or self.attribution.training
        kind = torch.bfloat16 if learning else torch.float16
        return torch.autocast(self.device.type, kind, enabled=self.device.type == "cuda")

    @property
    def stride(self) -> int:
        """By how much the stem divides the size of an image."""
        return int(self.encoder.settings["stride"])

    @property
    def rows_at_a_time(self) -> int:
        numbers = PIXELS_CPU if self.device.type == "cpu" else PIXELS_GPU
        # Nearly all that a pass holds are maps, which the stem has made smaller.
        return max(1, numbers * self.stride**2 // int(self.features.schema.n_numbers))

    def active(self, codes: Tensor) -> Tensor:
        size = max(1, NUMBERS_COMPARED // int(self.features.schema.n_numbers))
        return torch.cat([self.features.active(part) for part in torch.split(codes, size)])

    def _for_inference(self) -> tuple[Any, Any]:
        """Encoder and head; where nothing is learned on a GPU, faster copies of the encoder and of a decoder."""
        trained = torch.nn.ModuleList([self.encoder, self.attribution])
        learning = self.training or any(parameter.requires_grad for parameter in trained.parameters())
        if self.device.type != "cuda" or learning:
            return self.encoder, self.attribution
        state = tuple(
            (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
            for tensor in trained.state_dict().values()
        )
        if self._copies is None or self._copies[0] != state:
            head: Any = self.attribution
            if isinstance(head, DecoderHead):  # others answer in float32, outside of reduced precision
                head = inference_copy(head, torch.float16)
            self._copies = state, (inference_copy(self.encoder, torch.float16), head)
        encoder, head = self._copies[1]
        return encoder, head

    def maps(self, codes: Tensor) -> list[Tensor]:
        """What lies behind each stage of the encoder."""
        images = self.features(codes)
        if images.device.type == "cuda":
            images = images.to(memory_format=torch.channels_last)
        with self.reduced():
            result: list[Tensor] = self._for_inference()[0].stages(images)
        return result

    def latent(self, codes: Tensor) -> Tensor:
        return self.maps(codes)[-1].float().mean(dim=(2, 3))

    def total_inputs(self, codes: Tensor) -> Tensor:
        return self.latent(codes)

    def for_loss(self, name: str, codes: Tensor, total: Tensor, active: Tensor, seen: Tensor | None = None) -> Tensor:
        head = self.attribution
        if not isinstance(head, DecoderHead):
            return super().for_loss(name, codes, total, active, seen)
        maps = self.maps(codes)
        with self.reduced():
            scores: Tensor = head.settle_for_loss(head.decode(maps, total), total, active)
        return scores

    def hidden(self, codes: Tensor, total: Tensor) -> Tensor:
        seen: Tensor = self(codes, total).hidden
        return seen

    def forward(self, codes: Tensor, total: Tensor) -> Answer:
        head, active = self._for_inference()[1], self.active(codes)
        if not isinstance(head, DecoderHead):
            hidden = head.hidden(self.latent(codes), total)
            return Answer(head.settle(hidden, total, active), None, hidden)
        maps = self.maps(codes)
        with self.reduced():
            hidden = head.decode(maps, total)
            scored = head.settle(hidden, total, active)
        return Answer(scored, None, head.pooled(hidden))

"""EfficientNet-Lite as a vision tower: a network of convolutions whose cells and classes a LLaVA can read.

Importing this module registers the classes with transformers' auto classes, so that a stock
`LlavaForConditionalGeneration` builds the tower from its configuration.

The architecture is that of Tan and Le, EfficientNet (2019), in its variant for small devices: no squeeze and
excitation, ReLU6, and a stem and a head of fixed width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

PIXEL_MEAN, PIXEL_STD = 0.498, 0.502
"""What the pixels, in [0, 1], are normalised with: of all three colours."""

PLACE_CHANNELS = 6
"""Channels of the last layer that say where a cell is: left, middle, right; top, middle, bottom."""


class EfficientNetLiteConfig(PreTrainedConfig):
    """The configuration of an EfficientNet-Lite; by default Lite0 with the 1,000 classes of ImageNet, at 768 pixels.

    Attributes:
        image_size: The side of the images in pixels.
        view_sizes: Shorter sides in pixels to which an image is also scaled down, so that what the tower says of its
            cells takes account of the whole (`EfficientNetLiteModel.describe_cells`). Sizes that are not smaller than
            the image have no effect.
        stem_channels: Channels of the first convolution, which halves the resolution.
        out_channels: Channels of each stage.
        repeats: Blocks of each stage.
        kernel_sizes: Sides of the depthwise kernels of each stage.
        strides: Strides of the first block of each stage.
        expand_ratios: How much wider the blocks of each stage are inside.
        hidden_size: Channels of a cell.
        num_classes: Classes that the classifier tells apart.
        batch_norm_eps: ε of the batch normalisation.
        initializer_range: Standard deviation of new weights.
    """

    model_type = "efficientnet_lite"
    base_config_key = "vision_config"

    image_size: int = 768
    view_sizes: list[int] | tuple[int, ...] = (384, 320, 256, 224)
    stem_channels: int = 32
    out_channels: list[int] | tuple[int, ...] = (16, 24, 40, 80, 112, 192, 320)
    repeats: list[int] | tuple[int, ...] = (1, 2, 2, 3, 3, 4, 1)
    kernel_sizes: list[int] | tuple[int, ...] = (3, 3, 5, 3, 5, 5, 3)
    strides: list[int] | tuple[int, ...] = (1, 2, 2, 2, 1, 2, 1)
    expand_ratios: list[int] | tuple[int, ...] = (1, 6, 6, 6, 6, 6, 6)
    hidden_size: int = 1280
    num_classes: int = 1000
    batch_norm_eps: float = 1e-3
    initializer_range: float = 0.02

    @property
    def patch_size(self) -> int:
        """The side in pixels of what one cell stands for."""
        return 2 * prod(self.strides)


class SameConv(nn.Module):
    """A convolution with batch normalisation, padded so that the output has ⌈side / stride⌉ rows and columns.

    Odd padding puts the larger half below and to the right, as TensorFlow does, in which the weights were trained.
    """

    def __init__(
        self,
        config: EfficientNetLiteConfig,
        channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=config.batch_norm_eps)
        self.kernel, self.stride, self.activation = kernel, stride, activation

    def forward(self, x: Tensor) -> Tensor:
        height, width = (max(self.kernel - self.stride + -side % self.stride, 0) for side in x.shape[-2:])
        if height or width:
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        x = self.norm(self.conv(x)) if self.training else self._convolve(x)
        return F.relu6(x, inplace=not torch.is_grad_enabled()) if self.activation else x

    def _convolve(self, x: Tensor) -> Tensor:
        """Convolve with the normalisation as a part of the weights: one pass over the cells instead of two."""
        variance, mean = self.norm.get_buffer("running_var"), self.norm.get_buffer("running_mean")
        scale = self.norm.weight * torch.rsqrt(variance + self.norm.eps)
        weight, bias = self.conv.weight * scale[:, None, None, None], self.norm.bias - mean * scale
        return F.conv2d(x, weight, bias, self.conv.stride, groups=self.conv.groups)


class InvertedResidual(nn.Module):
    """A block (MBConv): widen the channels, convolve each of them, and narrow them again."""

    def __init__(
        self, config: EfficientNetLiteConfig, channels: int, out_channels: int, kernel: int, stride: int, expand: int
    ) -> None:
        super().__init__()
        inside = channels * expand
        self.expand = SameConv(config, channels, inside) if expand > 1 else nn.Identity()
        self.depthwise = SameConv(config, inside, inside, kernel, stride, groups=inside)
        self.project = SameConv(config, inside, out_channels, activation=False)
        self.is_residual = stride == 1 and channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.is_residual else y


class EfficientNetLiteModel(PreTrainedModel):
    """An EfficientNet-Lite with its classifier, which tells what each cell shows.

    Its hidden states are the outputs of the stages, the cells, and what the classifier says of each cell. It has no
    attention, so methods that read a tower's attention refuse it.
    """

    config_class = EfficientNetLiteConfig
    base_model_prefix = "efficientnet_lite"
    main_input_name = "pixel_values"
    input_modalities = "image"
    config: EfficientNetLiteConfig
    # A LLaVA asks its parts for one attention implementation; any will do for a part that has no attention.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: EfficientNetLiteConfig) -> None:
        super().__init__(config)
        if config.num_classes + PLACE_CHANNELS > config.hidden_size:
            raise ValueError(
                f"the classes and {PLACE_CHANNELS} channels for places must fit into a hidden state: "
                f"hidden_size must be at least {config.num_classes + PLACE_CHANNELS}, got {config.hidden_size}"
            )
        self.stem = SameConv(config, 3, config.stem_channels, 3, 2)
        self.stages = nn.ModuleList()
        channels = config.stem_channels
        for out_channels, repeats, kernel, stride, expand in zip(
            config.out_channels, config.repeats, config.kernel_sizes, config.strides, config.expand_ratios, strict=True
        ):
            blocks = []
            for repeat in range(repeats):
                blocks.append(InvertedResidual(config, channels, out_channels, kernel, 1 if repeat else stride, expand))
                channels = out_channels
            self.stages.append(nn.Sequential(*blocks))
        self.head = SameConv(config, channels, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_classes)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """Encode images.

        Args:
            pixel_values: B×3×height×width, normalised with PIXEL_MEAN and PIXEL_STD. Any size will do: there are no
                position embeddings.
            output_hidden_states: Whether to return the hidden states.
            return_dict: False returns a tuple.
            **kwargs: Options of other towers, such as the interpolation of position embeddings, have no effect.

        Returns:
            `last_hidden_state`: B×cells×hidden_size, row by row. `pooler_output`: B×hidden_size, their mean, which the
            classifier was trained on. `hidden_states`: the output of each stage, B×cells×channels, then the cells, then
            `describe_cells` of them and of the smaller views.
        """
        pixels = pixel_values.to(self.stem.conv.weight.dtype)
        hidden: list[Tensor] = []
        x = self._encode(pixels, hidden if output_hidden_states else None)
        # transformers declares its outputs to be of types that no operation returns.
        cells: Any = x.flatten(2).mT
        states: Any = None
        if output_hidden_states:
            views = [self._encode(view).flatten(2).mean(-1) for view in self._smaller_views(pixels)]
            states = (*hidden, cells, self.describe_cells(cells, (x.shape[-2], x.shape[-1]), views))
        output = BaseModelOutputWithPooling(last_hidden_state=cells, pooler_output=cells.mean(1), hidden_states=states)
        return output.to_tuple() if return_dict is False else output

    def _encode(self, pixels: Tensor, hidden: list[Tensor] | None = None) -> Tensor:
        """Encode images of one size: B×hidden_size×rows×columns. The outputs of the stages are appended to `hidden`."""
        x = self.stem(pixels.contiguous(memory_format=torch.channels_last))
        for stage in self.stages:
            x = stage(x)
            if hidden is not None:
                hidden.append(x.flatten(2).mT)
        return self.head(x)

    def _smaller_views(self, pixels: Tensor) -> Iterator[Tensor]:
        """Scale images down to each of the `view_sizes` that is smaller than they are."""
        height, width = pixels.shape[-2:]
        shorter = min(height, width)
        for size in self.config.view_sizes:
            if size < shorter:
                scaled = (round(height * size / shorter), round(width * size / shorter))
                view = F.interpolate(pixels.float(), scaled, mode="bilinear", antialias=True)
                yield view.to(pixels.dtype)

    def describe_cells(self, cells: Tensor, grid: tuple[int, int], views: Sequence[Tensor] = ()) -> Tensor:
        """Say what each cell shows and where it is, in the form of a hidden state.

        The network was trained on small images. On a large one, a cell sees a part of a thing and may take it for
        another thing. So the smaller views have a vote, too: the logits of a cell are the mean of its own and of those
        of each view as a whole. All cells get the same from the views, which therefore change what the image is taken
        for, and not which cells stand out.

        Args:
            cells: B×(rows·columns)×hidden_size.
            grid: Rows and columns.
            views: Of each smaller view, the mean of its cells: B×hidden_size.

        Returns:
            B×(rows·columns)×hidden_size. The first channels are the probabilities of the classes, the next ones
            `place_shares`; the rest is 0.
        """
        logits = self.classifier(cells)
        for view in views:
            logits = logits + self.classifier(view)[:, None]
        classes = (logits / (1 + len(views))).softmax(-1)
        places = place_shares(grid).to(classes).expand(len(cells), -1, -1)
        described = torch.cat((classes, places), -1)
        return F.pad(described, (0, self.config.hidden_size - described.shape[-1]))

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Conv2d):
            # He's initialisation by fan-out, which keeps the scale of the cells through many layers.
            nn.init.kaiming_normal_(module.weight, mode="fan_out")


def place_shares(grid: tuple[int, int]) -> Tensor:
    """Say where each cell of a grid is: (rows·columns)×6, shares of left, middle, right; top, middle, bottom.

    A cell between two anchors has a share of both; three shares add up to 1.
    """
    rows, columns = (_axis_shares(length) for length in grid)
    across, down = columns.repeat(grid[0], 1), rows.repeat_interleave(grid[1], 0)
    return torch.cat((across, down), 1)


def _axis_shares(length: int) -> Tensor:
    position = torch.linspace(0, 1, length) if length > 1 else torch.full((1,), 0.5)
    return (1 - 2 * (position[:, None] - torch.linspace(0, 1, 3)).abs()).clamp(min=0)


AutoConfig.register(EfficientNetLiteConfig.model_type, EfficientNetLiteConfig, exist_ok=True)
AutoModel.register(EfficientNetLiteConfig, EfficientNetLiteModel, exist_ok=True)

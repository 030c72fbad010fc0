"""Shared code of LLaVA's families: a CLIP or SigLIP vision tower, guided by the matching text encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from eadp.models.geometry import FamilyGeometry
from eadp.models.guides import tower_guide_for
from eadp.models.layout import Placeholders
from eadp.models.llava import tower_rows_by_image
from eadp.models.vision_call import EncodedImage, TowerLayer, VisionCall
from eadp.runtime.vision import token_attention
from eadp.serve.attention import record_attention
from eadp.serve.compat import cached_tokenizer_from_config
from eadp.serve.pruning import PruningModel
from eadp.serve.vision import ServedVision

TEXT_SIDE = ("text_model.", "text_projection.", "visual_projection.")
"""Prefixes of the weights of a text encoder that is stored in the folder of the model."""


class LlavaPruningModel(PruningModel):
    """Mixin for a vLLM model with a CLIP or SigLIP vision tower. Subclasses name the tower that they support.

    Attributes:
        geometry_class: The geometry of the family in `eadp.models`.
        tower_type: The `model_type` of the vision tower.
        select_strategy: "default" if the model drops the tower's CLS token, "full" if there is none.
        may_read_last_layer: Whether checkpoints may use the output of the tower's last layer.
    """

    geometry_class: ClassVar[type[FamilyGeometry]]
    tower_type: ClassVar[str]
    select_strategy: ClassVar[str]
    may_read_last_layer: ClassVar[bool]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        tower, layer = self.config.vision_config.model_type, self.config.vision_feature_layer
        strategy = self.config.vision_feature_select_strategy
        layer_supported = isinstance(layer, int) and (self.may_read_last_layer or layer != -1)
        if (tower, strategy) != (self.tower_type, self.select_strategy) or not layer_supported:
            supported = "one layer" if self.may_read_last_layer else "one layer before the last"
            raise ValueError(
                f"pruning this architecture needs a checkpoint that uses {supported} of a {self.tower_type} "
                f"({self.select_strategy}); this one uses layer {layer} of a {tower} ({strategy})"
            )

    @property
    def geometry(self) -> FamilyGeometry:
        return self.geometry_class(self.config)

    @property
    def vision(self) -> ServedVision:
        return ServedVision(self.geometry, self.multi_modal_projector)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        norm: dict[str, Tensor] = {}
        loaded = super().load_weights(_translate_weights(weights, norm))
        self.eadp_word_guide = self.build_word_guide()
        if self.eadp_settings.has_guide:
            self.eadp_guide = self._build_guide(norm)
        return loaded

    def _build_guide(self, norm: dict[str, Tensor]) -> Any:
        """Build the guide with the tower's post_layernorm.

        The guide needs this norm. vLLM does not load it, because the model uses the output of an earlier layer.
        """
        if len(norm) != 2:
            raise ValueError("the checkpoint lacks the post_layernorm of its vision tower, which the text guide needs")
        weight = next(self.vision_tower.parameters())
        vision = self.config.vision_config
        post_layernorm = nn.LayerNorm(vision.hidden_size, vision.layer_norm_eps)
        post_layernorm.load_state_dict(norm)
        post_layernorm.to(weight.device, weight.dtype).requires_grad_(False)
        tokenizer = cached_tokenizer_from_config(self.eadp_model_config)
        return tower_guide_for(
            vision, post_layernorm, self.eadp_model_config.model, tokenizer, self.eadp_settings.guide
        )

    def run_tower(self, pixels: Tensor, layers: Sequence[int]) -> TowerOutput:
        """Run the vision tower.

        Args:
            pixels: crops×3×h×w, the crops or frames.
            layers: The layers whose attention is recorded.
        """
        functions = [layer.self_attn.attn for layer in self.vision_tower.vision_model.encoder.layers]
        with record_attention(functions, layers, self.eadp_settings.tower) as attention:
            states = self.vision_tower(pixels, feature_select_strategy="full")
        return TowerOutput(states, attention, has_cls=self.select_strategy == "default")

    def build_encoded_images(
        self,
        output: TowerOutput,
        lengths: list[int],
        outputs: Sequence[str],
        modality: str = "image",
        pixels: Tensor | None = None,
        **arguments: Any,
    ) -> list[EncodedImage]:
        """Describe the images, or one clip, in the terms of `eadp.models`.

        Args:
            output: The tower's output for the crops or frames.
            lengths: The number of unpruned rows per image or clip, newlines included.
            outputs: Which of `SERVED_OUTPUTS` to add.
            modality: "image" or "video".
            pixels: The pixels of the images, where padding can be found in them.
            **arguments: The arguments of `get_image_features` besides the pixels.
        """
        geometry = self.geometry
        shape = (1, len(output.states)) if modality == "video" else ()
        call = VisionCall(modality, arguments, shape, lengths, output.attention, pixels)
        layouts = geometry.layouts(call, Placeholders(None, []))
        before_projector: Sequence[Any] = [None] * len(layouts)
        features: Sequence[Tensor | None] = [None] * len(layouts)
        padding: Sequence[Tensor | None] = [None] * len(layouts)
        if "tower_rows" in outputs:
            before_projector = tower_rows_by_image(geometry, call, layouts, output.states, output.has_cls)
        if "tower_features" in outputs:
            features = geometry.tokens_from_cells(call, layouts, output.cells)
        if "padding" in outputs:
            padding = geometry.padding(call, layouts)
        return [
            EncodedImage(layout, states, attention, rows, tower_features=each_features, padding=each_padding)
            for layout, states, attention, rows, each_features, each_padding in zip(
                layouts,
                output.cells.split([layout.crops for layout in layouts]),
                token_attention(geometry, call, layouts),
                before_projector,
                features,
                padding,
                strict=True,
            )
        ]


class ClipTowerModel(LlavaPruningModel):
    """Mixin for a model with CLIP's vision tower."""

    tower_type = "clip_vision_model"
    select_strategy = "default"
    may_read_last_layer = False


class SiglipTowerModel(LlavaPruningModel):
    """Mixin for a model with SigLIP's vision tower.

    LLaVA's checkpoints do not contain SigLIP's last layer, so they use the last layer that they have.
    """

    tower_type = "siglip_vision_model"
    select_strategy = "full"
    may_read_last_layer = True


@dataclass(frozen=True)
class TowerOutput:
    """The output of the vision tower for crops or frames.

    Attributes:
        states: crops×(CLS and cells)×d, the output of the layer that the model uses.
        attention: The attention of the requested layers.
        has_cls: Whether the sequences begin with a CLS token.
    """

    states: Tensor
    attention: list[TowerLayer]
    has_cls: bool

    @property
    def cells(self) -> Tensor:
        """crops×cells×d, the states without the CLS token."""
        return self.states[:, int(self.has_cls) :]


def _translate_weights(weights: Iterable[tuple[str, Tensor]], norm: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights under vLLM's names, and copy the tower's post_layernorm into `norm`.

    Unlike older checkpoints, those that transformers 5 saves lack the level `vision_model` in the names of the tower's
    weights. vLLM reads every safetensors file in a folder, so the weights of a text encoder are skipped.
    """
    for name, weight in weights:
        if name.startswith(TEXT_SIDE):
            continue
        before, tower, rest = name.partition("vision_tower.")
        if tower and not rest.startswith("vision_model."):
            rest = f"vision_model.{rest}"
        if rest.startswith("vision_model.post_layernorm."):
            norm[rest.rpartition(".")[2]] = weight.clone()
        yield before + tower + rest, weight

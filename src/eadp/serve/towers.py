"""What LLaVA's families share: a CLIP or SigLIP vision tower, its attention, and a guide from its text encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from vllm.tokenizers import cached_tokenizer_from_config

from eadp.models.geometry import FamilyGeometry
from eadp.models.guides import tower_guide_for
from eadp.models.layout import Placeholders
from eadp.models.llava import tower_rows_by_image
from eadp.models.vision_call import EncodedImage, TowerLayer, VisionCall
from eadp.runtime.vision import token_attention
from eadp.serve.attention import watching
from eadp.serve.pruning import PruningModel
from eadp.serve.vision import ServedVision

TEXT_SIDE = ("text_model.", "text_projection.", "visual_projection.")


class TowerModel(PruningModel):
    """A model with the vision tower of a pair of encoders, image and text. Subclasses name the tower they support.

    Attributes:
        geometry_class: The geometry of the family in `eadp.models`.
        tower_type: The `model_type` of the vision tower.
        select_strategy: "default" if the model drops the tower's CLS token, "full" if there is none.
        reads_last: Whether the model may read the tower's last layer.
    """

    geometry_class: ClassVar[type[FamilyGeometry]]
    tower_type: ClassVar[str]
    select_strategy: ClassVar[str]
    reads_last: ClassVar[bool]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        tower, layer = self.config.vision_config.model_type, self.config.vision_feature_layer
        strategy = self.config.vision_feature_select_strategy
        reads_one = isinstance(layer, int) and (self.reads_last or layer != -1)
        if (tower, strategy) != (self.tower_type, self.select_strategy) or not reads_one:
            which = "one layer" if self.reads_last else "one layer before the last"
            raise ValueError(
                f"this architecture can be served pruned only if it reads {which} of a {self.tower_type} "
                f"({self.select_strategy}); this checkpoint reads layer {layer} of a {tower} ({strategy})"
            )

    @property
    def geometry(self) -> FamilyGeometry:
        return self.geometry_class(self.config)

    @property
    def vision(self) -> ServedVision:
        return ServedVision(self.geometry, self.multi_modal_projector)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        norm: dict[str, Tensor] = {}
        loaded = super().load_weights(_watched(weights, norm))
        if self.eadp_settings.reads:
            self.eadp_guide = self._guide(norm)
        return loaded

    def _guide(self, norm: dict[str, Tensor]) -> Any:
        """vLLM drops the tower's post_layernorm, because the model reads a layer before it; the guide needs it."""
        if len(norm) != 2:
            raise ValueError("the checkpoint lacks the post_layernorm of its vision tower, which the text guide needs")
        weight = next(self.vision_tower.parameters())
        vision = self.config.vision_config
        post_layernorm = nn.LayerNorm(vision.hidden_size, vision.layer_norm_eps)
        post_layernorm.load_state_dict(norm)
        post_layernorm.to(weight.device, weight.dtype).requires_grad_(False)
        tokenizer = cached_tokenizer_from_config(self.eadp_place)
        return tower_guide_for(vision, post_layernorm, self.eadp_place.model, tokenizer, self.eadp_settings.guide)

    def seen(self, pixels: Tensor, layers: Sequence[int]) -> TowerOutput:
        """crops×3×h×w through the tower. layers: those whose attention is wanted."""
        functions = [layer.self_attn.attn for layer in self.vision_tower.vision_model.encoder.layers]
        with watching(functions, layers, self.eadp_settings.tower) as attention:
            states = self.vision_tower(pixels, feature_select_strategy="full")
        return TowerOutput(states, attention, has_cls=self.select_strategy == "default")

    def encoded_images(
        self, output: TowerOutput, lengths: list[int], tower_rows: bool, modality: str = "image", **arguments: Any
    ) -> list[EncodedImage]:
        """The images, or the one clip, as `eadp.models` describes them.

        Args:
            output: The tower's output for the crops or frames.
            lengths: The number of unpruned rows per image or clip, newlines included.
            tower_rows: Whether to add the tokens before the projector.
            modality: "image" or "video".
            **arguments: What `get_image_features` gets besides the pixels.
        """
        geometry = self.geometry
        pixels = (1, len(output.states)) if modality == "video" else ()
        call = VisionCall(modality, arguments, pixels, lengths, output.attention)
        layouts = geometry.layouts(call, Placeholders(None, []))
        before_projector: Sequence[Any] = [None] * len(layouts)
        if tower_rows:
            before_projector = tower_rows_by_image(geometry, call, layouts, output.states, output.has_cls)
        return [
            EncodedImage(layout, states, attention, rows)
            for layout, states, attention, rows in zip(
                layouts,
                output.cells.split([layout.crops for layout in layouts]),
                token_attention(geometry, call, layouts),
                before_projector,
                strict=True,
            )
        ]


class ClipModel(TowerModel):
    """A model with CLIP's vision tower."""

    tower_type = "clip_vision_model"
    select_strategy = "default"
    reads_last = False


class SiglipModel(TowerModel):
    """A model with SigLIP's vision tower. LLaVA's checkpoints lack SigLIP's last layer, so they read their own last."""

    tower_type = "siglip_vision_model"
    select_strategy = "full"
    reads_last = True


@dataclass(frozen=True)
class TowerOutput:
    """What the tower returned for crops or frames.

    Attributes:
        states: crops×(CLS and cells)×d, the layer that the model reads.
        attention: The attention of the layers that were asked for.
        has_cls: Whether the sequences begin with a CLS token.
    """

    states: Tensor
    attention: list[TowerLayer]
    has_cls: bool

    @property
    def cells(self) -> Tensor:
        """crops×cells×d."""
        return self.states[:, int(self.has_cls) :]


def _watched(weights: Iterable[tuple[str, Tensor]], norm: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names that vLLM knows; fills `norm` on the way.

    transformers 5 saves the tower without the level `vision_model`, which checkpoints of the hub have. vLLM reads every
    safetensors file of a folder, also the text side that may lie beside the model.
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

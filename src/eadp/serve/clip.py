"""What LLaVA's families share: the guide from CLIP's text side, and what their tower attended to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from vllm.tokenizers import cached_tokenizer_from_config

from eadp.models.family import Family, Picture, Prompt, Seen, TowerLayer
from eadp.models.guides import guide_for
from eadp.runtime.vision import with_attention, with_tower_rows
from eadp.serve.attention import watching
from eadp.serve.pruning import PruningModel

TEXT_SIDE = ("text_model.", "text_projection.", "visual_projection.")


class ClipModel(PruningModel):
    """A model that sees through CLIP's tower."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        tower, layer = self.config.vision_config.model_type, self.config.vision_feature_layer
        reads_one = isinstance(layer, int) and layer != -1
        if (tower, self.config.vision_feature_select_strategy) != ("clip_vision_model", "default") or not reads_one:
            raise ValueError(
                f"only LLaVAs that read one layer before the last of a CLIP tower can be served pruned; this one reads "
                f"layer {layer} of a {tower} ({self.config.vision_feature_select_strategy})"
            )

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        norm: dict[str, Tensor] = {}
        loaded = super().load_weights(_watched(weights, norm))
        if self.eadp_settings.reads:
            self.eadp_guide = self._guide(norm)
        return loaded

    def _guide(self, norm: dict[str, Tensor]) -> Any:
        """vLLM leaves the tower's post_layernorm out, because the model reads a layer before it; the guide needs it."""
        if len(norm) != 2:
            raise ValueError("the checkpoint has no post_layernorm of its vision tower, which CLIP's text side needs")
        weight = next(self.vision_tower.parameters())
        vision = self.config.vision_config
        tower = nn.Module()
        tower.post_layernorm = nn.LayerNorm(vision.hidden_size, vision.layer_norm_eps)
        tower.post_layernorm.load_state_dict(norm)
        tower.post_layernorm.to(weight.device, weight.dtype).requires_grad_(False)
        model = nn.Module()
        model.config, model.name_or_path, model.vision_tower = self.config, self.eadp_place.model, tower
        return guide_for(model, cached_tokenizer_from_config(self.eadp_place), self.eadp_settings.guide)

    def seen(self, pixels: Tensor, layers: Sequence[int]) -> TowerOutput:
        """crops×3×h×w through the tower. layers: those whose attention is wanted."""
        functions = [layer.self_attn.attn for layer in self.vision_tower.vision_model.encoder.layers]
        with watching(functions, layers, self.eadp_settings.tower) as attention:
            states = self.vision_tower(pixels, feature_select_strategy="full")
        return TowerOutput(states, attention)

    def pictures(
        self,
        kind: type[Family],
        output: TowerOutput,
        lengths: list[int],
        tower_rows: bool,
        parts: dict[str, Any],
        **arguments: Any,
    ) -> list[Picture]:
        """As `eadp.models` has them. parts: of the base model, that the family asks for."""
        tower, projector = self.vision_tower.vision_model, self.multi_modal_projector
        family = self.family(kind, vision_tower=tower, multi_modal_projector=projector, **parts)
        hidden = SimpleNamespace(hidden_states={self.config.vision_feature_layer: output.states})
        seen = Seen("image", arguments, (), lengths, output.attention)
        pictures = with_attention(family, seen, family.pictures(seen, hidden, Prompt(None, [])))
        return with_tower_rows(family, seen, hidden, pictures) if tower_rows else pictures


@dataclass(frozen=True)
class TowerOutput:
    """states: crops×(CLS and cells)×d, the layer that the model reads. attention: of the layers that were watched."""

    states: Tensor
    attention: list[TowerLayer]

    @property
    def cells(self) -> Tensor:
        """crops×cells×d."""
        return self.states[:, 1:]


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

"""Private and young parts of transformers and torch, in one place.

If a new release of transformers or torch breaks eadp, look here first: each entry says which release introduced what it
uses. The module imports nothing else of eadp, and imports transformers only when a function needs it, so that the
selection methods work without transformers.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, MutableMapping, Sequence
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
    from transformers import (
        Cache,
        CLIPImageProcessorPil,
        LlavaNextImageProcessorPil,
        LlavaOnevisionImageProcessorPil,
        Qwen2VLImageProcessorPil,
        SiglipImageProcessorPil,
    )
    from transformers.cache_utils import StaticLayer
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import get_vision_window_index

__all__ = [
    "ENCODER_OUTPUTS",
    "ENCODE_INPUTS",
    "PROCESS_DEEPSTACK",
    "REPLACE_VIDEO_TOKEN",
    "TRANSFORMERS_FLOOR",
    "TRANSFORMERS_TESTED",
    "UNPADDED_FEATURES",
    "CLIPImageProcessorPil",
    "FlopCounterMode",
    "LlavaNextImageProcessorPil",
    "LlavaOnevisionImageProcessorPil",
    "Qwen2VLImageProcessorPil",
    "SiglipImageProcessorPil",
    "StaticLayer",
    "TorchDispatchMode",
    "attention_function",
    "attention_implementation",
    "attention_registry",
    "cached_keys_and_values",
    "config_with_attention",
    "cpu_flash_attention",
    "create_layer_mask",
    "forget_compiled_code",
    "get_anyres_image_grid_shape",
    "get_vision_window_index",
    "import_name",
    "installed_version",
    "mask_width",
    "max_length",
    "query_offset",
    "require_transformers",
    "sdpa_flop_count",
    "sliding_layers",
    "tensor_version",
    "tokens_per_entry",
    "tree_iter",
    "unpad_image",
    "without_video_processor",
]

TRANSFORMERS_FLOOR = "5.19"
"""The oldest minor release of transformers that eadp works with. It must equal the floor in pyproject.toml."""

TRANSFORMERS_TESTED = "5.22"
"""The newest minor release of transformers that the tests ran with. It must equal the pin in constraints.txt."""

# Releases.


def installed_version(distribution: str) -> str | None:
    """Look up the version of an installed distribution, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def require_transformers(what: str, since: str = TRANSFORMERS_FLOOR) -> None:
    """Check that transformers is new enough.

    Args:
        what: What needs it, as the subject of the error message.
        since: The oldest minor release that will do.

    Raises:
        ImportError: If transformers is older or not installed.
    """
    installed = installed_version("transformers")
    if installed is None or _minor(installed) < _minor(since):
        found = "transformers is not installed" if installed is None else f"{installed} is installed"
        command = f'pip install --upgrade "transformers>={since},<6"'
        raise ImportError(f"{what} needs transformers {since} or newer; {found}: {command}")


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


# Names that are imported from this module as if they were defined here: `from eadp.compat import unpad_image`. They are
# looked up when they are first asked for, so a missing one breaks only the module that imports it.

_NAMES = {
    # transformers.models: helpers of the modeling files. The first two are as old as LLaVA-NeXT.
    "get_anyres_image_grid_shape": "transformers.models.llava_next.modeling_llava_next",
    "unpad_image": "transformers.models.llava_next.modeling_llava_next",
    "get_vision_window_index": "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",  # transformers 5.9
    # Image processors that work without torchvision: transformers 5.4.
    "CLIPImageProcessorPil": "transformers",
    "LlavaNextImageProcessorPil": "transformers",
    "LlavaOnevisionImageProcessorPil": "transformers",
    "Qwen2VLImageProcessorPil": "transformers",
    "SiglipImageProcessorPil": "transformers",
    # The layers of static caches: older than transformers 5.0 and not documented.
    "StaticLayer": "transformers.cache_utils",
    # torch.utils: private modules, and a public one whose formulas are not documented. All are older than torch 2.4.
    "TorchDispatchMode": "torch.utils._python_dispatch",
    "tree_iter": "torch.utils._pytree",
    "FlopCounterMode": "torch.utils.flop_counter",
    "sdpa_flop_count": "torch.utils.flop_counter",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = _NAMES[name].partition(".")[0]
    tested = f"; eadp was tested with transformers {TRANSFORMERS_FLOOR} to {TRANSFORMERS_TESTED}"
    return import_name(
        _NAMES[name], name, f"{package} {installed_version(package)}", tested if package == "transformers" else ""
    )


def import_name(module: str, name: str, installed: str, tested: str = "") -> Any:
    """Import a name from a module of another package.

    Args:
        module: The module.
        name: The name in it.
        installed: The installed package with its version, as the subject of the error message.
        tested: The end of the error message: which versions were tested.

    Raises:
        ImportError: If the module or the name does not exist.
    """
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{installed} has no {name} in {module}{tested}") from error


# Key-value caches. `eadp.runtime.cache_map` overrides methods of Cache: get_query_offset (transformers 5.14), crop with
# a number of tokens to remove (5.15), get_seq_length, reset, reorder_cache and the batch methods (before 5.0).


def query_offset(cache: Cache, layer: int = 0) -> Any:
    """Get how many tokens a layer of a cache holds, from which masks are built.

    Cache.get_query_offset, transformers 5.14. It is an int, or for a static layer a tensor.
    """
    return cache.get_query_offset(layer)


def max_length(cache: Cache, layer: int | None = None) -> int:
    """Get how many tokens fit into a static cache, or into one layer of it.

    get_max_length of Cache and its layers, transformers 5.13.
    """
    owner: Any = cache if layer is None else cache.layers[layer]
    return owner.get_max_length()


def mask_width(cache: Cache, length: int, layer: int) -> int:
    """Get how many columns the mask of a layer needs when `length` tokens are added.

    Cache.get_mask_sizes with a number of tokens, transformers 5.4.
    """
    width, _ = cache.get_mask_sizes(length, layer)
    return width


def sliding_layers(cache: Cache | None) -> Sequence[bool]:
    """Get which layers of a cache hold only a sliding window. Cache.is_sliding is older than transformers 5.0."""
    return () if cache is None else cache.is_sliding


def cached_keys_and_values(cache: Cache, layer: int) -> tuple[Tensor, Tensor] | None:
    """Get the keys and values of one layer without the empty slots of a static cache, or None if it is empty.

    The attributes of a cache's layers are older than transformers 5.0 and not documented.
    """
    held: Any = cache.layers[layer]
    if not held.is_initialized or held.get_seq_length() == 0:
        return None
    length = int(held.get_seq_length())
    return held.keys[:, :, :length], held.values[:, :, :length]


# Masks.


def create_layer_mask(
    config: Any, states: Tensor, valid: Tensor | None, cache: Cache | None, layer: int, sliding: bool
) -> Any:
    """Build the causal mask of one layer, by what this layer of the cache holds.

    transformers.masking_utils; `layer_idx` came with transformers 5.14.

    Args:
        config: The configuration of the language model.
        states: The layer's input, B×P×d.
        valid: Which columns are not padding, B×(held + P); None if none is padding.
        cache: The cache of the call.
        layer: The number of the layer.
        sliding: Whether the layer attends only within a sliding window.
    """
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    create = create_sliding_window_causal_mask if sliding else create_causal_mask
    return create(config=config, inputs_embeds=states, attention_mask=valid, past_key_values=cache, layer_idx=layer)


# Attention functions. A module looks up its function by a name in its configuration.


def _names_of(attention: nn.Module) -> dict[str, Any]:
    return inspect.unwrap(type(attention).forward).__globals__


def attention_registry(attention: nn.Module) -> MutableMapping[str, Callable[..., Any]]:
    """Get the registry in which an attention module looks up its function. Older than transformers 5.0."""
    return _names_of(attention)["ALL_ATTENTION_FUNCTIONS"]


def attention_implementation(config: Any) -> str:
    """Get the name under which a module looks up its attention function. A private attribute, before 5.0."""
    return config._attn_implementation


def attention_function(attention: nn.Module, config: Any) -> Callable[..., Any]:
    """Get the function that an attention module calls with a configuration.

    AttentionInterface.get_interface: transformers 5.1.
    """
    registry: Any = attention_registry(attention)
    return registry.get_interface(attention_implementation(config), _names_of(attention)["eager_attention_forward"])


def config_with_attention(config: Any, name: str) -> Any:
    """Copy a configuration, with another name for the attention function. A private attribute, before 5.0.

    The public property would also rename the sub-configurations, which the copy shares.
    """
    changed = copy.copy(config)
    changed._attn_implementation_internal = name
    return changed


# Vision features, processors and models.

ENCODER_OUTPUTS = "mm_encoder_outputs"
"""The argument in which `generate` hands encoded images to `forward`: transformers 5.18."""

ENCODE_INPUTS = "_maybe_prepare_encoder_kwargs_for_generation"
"""The private method by which `generate` encodes images before it prepares a cache: transformers 5.18."""

PROCESS_DEEPSTACK = "_deepstack_process"
"""Qwen3-VL's private method that adds DeepStack features after a layer: before transformers 5.0."""

UNPADDED_FEATURES = "_get_unpadded_features"
"""The private method by which LLaVA-NeXT's processor counts the tokens of an image: before transformers 5.0."""

REPLACE_VIDEO_TOKEN = "replace_video_token"
"""The method by which LLaVA-OneVision's processor writes the placeholders of a clip: transformers 5.15."""


def tokens_per_entry(features: Any) -> list[int]:
    """Count the tokens of each image or clip in an encoder's `pooler_output`.

    An entry is N×d. LLaVA-NeXT-Video's clips were frames×tokens×d before transformers 5.20.2.
    """
    return [entry.shape[:-1].numel() for entry in features]


def without_video_processor(kind: Any) -> Any:
    """Subclass a processor of images and clips, so that its part for clips, which needs torchvision, may be None.

    ProcessorMixin.check_argument_for_proper_class is older than transformers 5.0 and not documented.
    """

    def check(self: Any, name: str, part: Any) -> Any:
        return None if part is None else kind.check_argument_for_proper_class(self, name, part)

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})


# torch.


def tensor_version(tensor: Tensor) -> int | None:
    """Count the in-place changes of a tensor; None for one made in inference mode, which has no count.

    A private attribute, older than torch 2.0.
    """
    return None if tensor.is_inference() else tensor._version


def forget_compiled_code() -> None:
    """Make `torch.compile` compile every function again when it is next called.

    Compiled code does not look whether a module got or lost hooks since it was compiled, so it would go on without
    them, or with them. torch._dynamo.reset is older than torch 2.0; nothing is imported unless something was compiled.
    """
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()


def cpu_flash_attention() -> Any:
    """Get the fused attention operator on the CPU, which torch's flop counter does not know: torch 2.2."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

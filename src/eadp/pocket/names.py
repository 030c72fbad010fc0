"""The names of the models that run offline, as `eadp.load_pocket` and every `--model` take them."""

POCKET = "pocket"
"""The model whose weights ship with this package."""

SMOL = "smol"
"""The larger model, with SmolLM2 as its language model."""

OFFLINE = (POCKET, SMOL)

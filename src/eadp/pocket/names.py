"""The names of the models that run offline, as `eadp.load_pocket` and every `--model` take them."""

POCKET = "pocket"
"""The smallest model, for scenes of coloured shapes. Its weights ship with this package."""

THINGS = "things"
"""A small model for scenes of everyday things. Its weights ship with this package, too."""

SMOL = "smol"
"""The larger model for scenes of everyday things, with SmolLM2 as its language model."""

CLIPS = "clips"
"""The model `things` for clips of everyday things: a LLaVA-NeXT-Video with the same weights."""

PHOTO = "photo"
"""The model for photographs: EfficientNet-Lite0, which tells 1,000 things apart, in front of SmolLM2."""

DRAWN = (POCKET, THINGS, CLIPS, SMOL)
"""The models that know drawn scenes."""

OFFLINE = (*DRAWN, PHOTO)

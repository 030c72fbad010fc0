"""These tests run in the environments of the harnesses (`make test-hosts`); plain pytest does not collect them."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path += [str(Path(__file__).parent / folder) for folder in ("..", ".", "lmms-eval", "vlmeval")]

import torch

torch.set_num_threads(1)

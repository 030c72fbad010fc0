"""The pruning methods, one file per method, and how to list, look up and register them."""

from eadp.methods.base import Method, get_method, get_method_class, list_methods, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.cdpruner import CDPruner
from eadp.methods.dart import DART
from eadp.methods.divprune import DivPrune
from eadp.methods.downsample import Downsample
from eadp.methods.eadp import EADP
from eadp.methods.evs import EVS
from eadp.methods.fastv import FastV
from eadp.methods.fastvid import FastVID
from eadp.methods.flashvid import FlashVID
from eadp.methods.floc import FLoC
from eadp.methods.hiprune import HiPrune
from eadp.methods.holitom import HoliTom
from eadp.methods.inside import InsideMethod
from eadp.methods.mmtok import MMTok
from eadp.methods.no_pruning import NoPruning
from eadp.methods.pool import Pool
from eadp.methods.prumerge import PruMerge
from eadp.methods.pyramiddrop import PyramidDrop
from eadp.methods.random import Random
from eadp.methods.scope import SCOPE
from eadp.methods.sparsevlm import SparseVLM
from eadp.methods.topk import TopK
from eadp.methods.trim import TRIM
from eadp.methods.uniform import Uniform
from eadp.methods.vcast import VCAST
from eadp.methods.vidcom2 import VidCom2
from eadp.methods.video import VideoMethod
from eadp.methods.visionzip import VisionZip
from eadp.methods.vispruner import VisPruner

__all__ = [
    "DART",
    "EADP",
    "EVS",
    "SCOPE",
    "TRIM",
    "VCAST",
    "BeforeMethod",
    "CDPruner",
    "DivPrune",
    "Downsample",
    "FLoC",
    "FastV",
    "FastVID",
    "FlashVID",
    "HiPrune",
    "HoliTom",
    "InsideMethod",
    "MMTok",
    "Method",
    "NoPruning",
    "Pool",
    "PruMerge",
    "PyramidDrop",
    "Random",
    "SparseVLM",
    "TopK",
    "Uniform",
    "VidCom2",
    "VideoMethod",
    "VisPruner",
    "VisionZip",
    "get_method",
    "get_method_class",
    "list_methods",
    "register_method",
]

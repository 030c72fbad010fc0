"""Stands in for each architecture where vLLM is a release that the plugin was not tested with: importing it says so."""

from eadp.serve import versions

versions.check()

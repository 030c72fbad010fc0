"""Registered in place of each architecture if the installed vLLM was not tested: importing it raises the error."""

from eadp.serve import versions

versions.check_version()

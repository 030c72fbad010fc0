"""The base of the plugin's mixins.

A mixin calls methods of the vLLM class that follows it among the bases of a family's class. Type checkers do not know
that class, so the mixins inherit from `VllmBase`, which is `object` at run time and `Any` for type checkers.
"""

from __future__ import annotations

from typing import Any

VllmBase: Any = object

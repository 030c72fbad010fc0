"""What our mixins stand before in the order of base classes: a class of vLLM, of which type checkers know nothing."""

from __future__ import annotations

from typing import Any

Stock: Any = object

"""The optimizer, Muon and AdamW with one schedule, and training stages that can be resumed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from training import distributed

_LAYER_WEIGHT = re.compile(r"(^|\.)layers\.\d+\..*\.weight$")

WARM_UP = 100
"""Steps over which the learning rate rises."""


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonal updates: U Vᵀ instead of U Σ Vᵀ, by Newton–Schulz iterations.

    torch.optim.Muon iterates in bfloat16, which takes seconds per step on a CPU without bfloat16 arithmetic. Here
    that is a choice.

    Args:
        matrices: The matrices to optimise.
        lr: Learning rate.
        momentum: Share of the mean that each step keeps.
        decay: Weight decay.
        half: Iterate in bfloat16.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.05,
        half: bool = False,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "decay": decay})
        self.dtype = torch.bfloat16 if half else torch.float32

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                directions = torch.stack([self._direction(p, group["momentum"]) for p in parameters])
                updates = orthogonalize(directions.to(self.dtype)).to(directions.dtype)
                size = 0.2 * max(shape) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * size)

    def _direction(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        mean.lerp_(grad, 1 - momentum)
        return grad.lerp(mean, momentum)


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Move the singular values towards 1 by the quintic Newton–Schulz iteration x ← a x + (b xxᵀ + c (xxᵀ)²) x."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Optimizer:
    """Muon for the matrices of the layers of transformers, AdamW for everything else, the updates of a LoRA included.

    The learning rate is AdamW's. Muon's updates are scaled to the same size.
    """

    def __init__(self, modules: list[nn.Module], lr: float, steps: int, half: bool = False) -> None:
        parameters = {id(p): (n, p) for m in modules for n, p in m.named_parameters() if p.requires_grad}
        matrices = [p for name, p in parameters.values() if p.ndim == 2 and _LAYER_WEIGHT.search(name)]
        chosen = {id(p) for p in matrices}
        rest = [p for _, p in parameters.values() if id(p) not in chosen]
        self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr, betas=(0.9, 0.98), weight_decay=0.01)]
        if matrices:
            self.parts.append(Muon(matrices, lr, half=half))
        self.parameters = matrices + rest
        self.lr, self.steps = lr, steps

    def step(self, number: int) -> None:
        """Take one step with the gradients that were accumulated, and clear them.

        The learning rate rises during the warm-up, stays, and falls to 0 over the last third.
        """
        lr = self.lr * min(1.0, (number + 1) / WARM_UP, 3 * (self.steps - number) / self.steps)
        distributed.average_gradients(self.parameters)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = lr
            part.step()
            part.zero_grad(set_to_none=True)


class Stage:
    """One stage of the training.

    `run` calls `step(number)`, which returns the losses, shows them, and saves checkpoints. With `accumulate`, a step
    is that many batches, which are numbered through, and takes the mean of their gradients. A finished stage is loaded
    and skipped; an interrupted one continues from its last checkpoint. Every step has its own seed, so that an
    interrupted run ends with the same weights as an uninterrupted one.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        modules: dict[str, nn.Module],
        steps: int,
        lr: float,
        accumulate: int = 1,
        half: bool = False,
    ) -> None:
        self.name, self.modules, self.steps, self.accumulate = name, modules, steps, accumulate
        self.optimizer = Optimizer(list(modules.values()), lr, steps, half)
        self.file = folder / f"{name}.safetensors"
        self.curve = folder / f"{name}.curve.jsonl"

    def run(
        self,
        progress: Progress,
        step: Callable[[int], dict[str, Tensor]],
        every: int = 100,
        measure: Callable[[], dict[str, float]] | None = None,
        measure_every: int = 1,
    ) -> None:
        """Train until the last step.

        Args:
            progress: Where to show the progress.
            step: Takes the number of a batch and returns its losses. The one named "right" is shown, but not minimised.
            every: Save a checkpoint after this many steps.
            measure: Measures the modules on validation data. The first worker calls it at checkpoints, and appends a
                line to the learning curve: the losses, the measures, and the CPU time of this worker since its start.
            measure_every: Measure at every checkpoint whose number of steps is a multiple of this, and at the last.
        """
        start = self.load_checkpoint()
        before = time.process_time()
        task = progress.add_task(self.name, total=self.steps, completed=start)
        sums: dict[str, float] = {}
        for number in range(start, self.steps):
            torch.manual_seed(distributed.size() * number + distributed.rank())
            for part in range(self.accumulate):
                losses = step(number * self.accumulate + part)
                loss = sum((losses[name] for name in losses if name != "right"), torch.zeros(()))
                (loss / self.accumulate).backward()
                for name, value in losses.items():
                    sums[name] = 0.95 * sums.get(name, value.item()) + 0.05 * value.item()
            self.optimizer.step(number)
            shown = " ".join(f"{name} {value:.3f}" for name, value in sums.items())
            progress.update(task, advance=1, description=f"{self.name}: {shown}")
            if distributed.rank() == 0 and ((number + 1) % every == 0 or number + 1 == self.steps):
                self._save(number + 1)
                progress.console.print(f"{self.name} {number + 1}/{self.steps}  {shown}")
                if measure is not None and ((number + 1) % measure_every == 0 or number + 1 == self.steps):
                    self._note(number + 1, time.process_time() - before, sums, measure(), progress)

    def _note(
        self, done: int, spent: float, losses: dict[str, float], measures: dict[str, float], progress: Progress
    ) -> None:
        """Append a line to the learning curve."""
        named = {f"loss_{name}": round(value, 4) for name, value in losses.items()}
        with self.curve.open("a") as curve:
            curve.write(json.dumps({"step": done, "cpu_seconds": round(spent, 1), **named, **measures}) + "\n")
        progress.console.print("  ".join(f"{name} {value:.1f}" for name, value in measures.items()))

    def _save(self, done: int) -> None:
        tensors = {
            f"{name}.{key}": value.contiguous().clone()
            for name, module in self.modules.items()
            for key, value in module.state_dict().items()
        }
        for index, part in enumerate(self.optimizer.parts):
            for parameter, state in part.state_dict()["state"].items():
                for key, value in state.items():
                    tensors[f"optimizer.{index}.{parameter}.{key}"] = value.contiguous().clone()
        scratch = self.file.with_suffix(".tmp")
        save_file(tensors, scratch, {"done": str(done)})
        scratch.replace(self.file)

    def load_checkpoint(self) -> int:
        """Load the last checkpoint, if there is one, and return its number of steps."""
        if not self.file.exists():
            return 0
        with safe_open(self.file, "pt") as saved:
            tensors = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118 (not a mapping)
            done = int(saved.metadata()["done"])
        for name, module in self.modules.items():
            length = len(name) + 1
            module.load_state_dict({k[length:]: v for k, v in tensors.items() if k.startswith(f"{name}.")})
        for index, part in enumerate(self.optimizer.parts):
            state = part.state_dict()
            for full, value in tensors.items():
                if full.startswith(f"optimizer.{index}."):
                    _, _, parameter, key = full.split(".")
                    state["state"].setdefault(int(parameter), {})[key] = value
            part.load_state_dict(state)
        return done


def batch_rows(number: int, batch: int, total: int) -> NDArray[np.int64]:
    """Return this worker's rows of batch `number`. Every epoch has a new order."""
    epoch, turn = divmod(number, total // batch)
    order = np.random.default_rng((7, epoch)).permutation(total)
    return order[turn * batch : (turn + 1) * batch][distributed.rank() :: distributed.size()]

"""What `tuner.runtime.patch` replaces in a model of transformers.

    model = AutoModelForCausalLM.from_pretrained(...)
    print(tuner.runtime.patch(model, "llama.tunerpack"))  # 32 of 32 MLPs run the pack's kernels

`generate`, its static cache and torch.compile work as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from tuner.runtime.models import kernels, mlps
from tuner.runtime.models.attentions import reason_against as reason_against_attention
from tuner.runtime.models.attentions import replace as replace_attentions
from tuner.runtime.models.layers import reason_against as reason_against_layers
from tuner.runtime.models.layers import replace as replace_layers
from tuner.runtime.models.steps import Steps
from tuner.runtime.programs.pack import Pack

_numbers = count(1)
NONE = "the pack has none"


@dataclass(frozen=True, kw_only=True)
class Part:
    """The attentions or the layers of a model."""

    #: Their name in a sentence.
    what: str
    #: Those that use the operator now, and all of them.
    num_patched: int
    num_all: int
    #: Pairs of sequences and tokens of a static cache's rows for which kernels compute decode steps. Empty on a CPU.
    sizes: tuple[tuple[int, int], ...] = ()
    #: Whether it is worth a sentence: the pack has kernels for it, or it was asked for.
    says: bool = True
    #: Why others were not patched.
    reason: str = ""

    def __str__(self) -> str:
        left = f"{self.num_all - self.num_patched} {self.what} left unpatched: {self.reason}"
        if not self.num_patched:
            return left
        at = " and ".join(f"{sequences} x {length}" for sequences, length in self.sizes)
        done = f"{self.num_patched} of {self.num_all} {self.what} run them in steps of {at or 'any size'}"
        return f"{done}; {left}" if self.reason else done


@dataclass(frozen=True, kw_only=True)
class Patched:
    """How many MLPs of a model were patched, and why others were not; the same for attentions and layers."""

    #: MLPs that use the operator now, and all of them.
    num_patched: int
    num_mlps: int
    #: Why the others were not patched, with counts.
    reasons: dict[str, int]
    #: Attentions and layers, if they were asked for or the pack has some.
    parts: tuple[Part, ...] = ()
    #: Whether a weight is on a card; on a CPU, PyTorch's own products are used.
    is_on_card: bool = True

    def __str__(self) -> str:
        others = "".join(f"; {count} left unpatched: {reason}" for reason, count in self.reasons.items())
        parts = "".join(f"; {part}" for part in self.parts)
        where = "" if self.is_on_card else " (on a CPU PyTorch's products: move the model to a card before)"
        return f"{self.num_patched} of {self.num_mlps} MLPs run the pack's kernels{where}{others}{parts}"


def patch_model(model: Any, opened: Callable[[], Pack], *, attentions: bool | None, layers: bool | None) -> Patched:
    """As `patch`; `opened` returns the pack if a weight is on a card."""
    is_on_card = any(one.is_cuda for one in model.parameters())
    steps = Steps(f"tuner-{next(_numbers)}", is_on_card=is_on_card)
    pack = opened() if is_on_card else None
    of_layers = _layers_of(model, pack, steps) if _is_wanted(layers, pack) else None
    of_attentions, fitting = _attentions_of(model, pack, steps) if _is_wanted(attentions, pack) else (None, [])
    parts = [
        part for part, asked in ((of_layers, layers), (of_attentions, attentions)) if part and (asked or part.says)
    ]
    has_layers = of_layers is not None and of_layers.num_patched > 0
    num_mlps, reasons = mlps.replace(model, opened, merges_all=has_layers)
    if has_layers:
        replace_layers(model, steps)
    if has_layers or fitting:
        replace_attentions(model, fitting, steps)
    return Patched(
        num_patched=num_mlps - reasons.total(),
        num_mlps=num_mlps,
        reasons=dict(reasons),
        parts=tuple(parts),
        is_on_card=is_on_card,
    )


def _is_wanted(asked: bool | None, pack: Pack | None) -> bool:
    return pack is not None if asked is None else asked


def _layers_of(model: Any, pack: Pack | None, steps: Steps) -> Part:
    """What of the layers is replaced: all or none."""
    num_all, reason = len(getattr(getattr(model, "model", None), "layers", ())), reason_against_layers(model)
    if not reason and pack is not None:
        ready = kernels.layers(pack, model.model.layers[0])
        steps.layers |= ready.sizes
        reason = ready.reason
        if not ready.sizes and not reason:
            return Part(what="layers", num_patched=0, num_all=num_all, says=False, reason=NONE)
    sizes = tuple(sorted(steps.layers))
    return Part(what="layers", num_patched=0 if reason else num_all, num_all=num_all, sizes=sizes, reason=reason)


def _attentions_of(model: Any, pack: Pack | None, steps: Steps) -> tuple[Part, list[Any]]:
    """What of the attentions is replaced, and which."""
    known = [one for one in model.modules() if hasattr(one, "o_proj") and hasattr(one, "scaling")]
    reasons = [reason_against_attention(one) for one in known]
    fitting = [one for one, reason in zip(known, reasons, strict=True) if not reason]
    reason, says = next(filter(None, reasons), ""), True
    if fitting and pack is not None:
        ready = kernels.attentions(pack, fitting[0])
        steps.attentions |= ready.sizes
        says = bool(ready.sizes or ready.reason)
        if not ready.sizes:
            fitting, reason = [], ready.reason or NONE
    part = Part(
        what="attentions",
        num_patched=len(fitting),
        num_all=len(known),
        sizes=tuple(sorted(steps.attentions)),
        says=says,
        reason=reason,
    )
    return part, fitting

"""The form by which people submit: its fields as a body of `POST /jobs` or `POST /batches`, and as commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from tuner.core.problem.presets import MODELS, LayerRun, Run
from tuner.core.trial.job import PriorsChoice
from tuner.errors import InvalidInput
from tuner.wire.view import View

#: Rows of a ladder's jobs at most: each is a search of its own.
MAX_ROWS = 40
_SIZES = ("d_in", "d_hidden", "d_out")
#: What is tuned of a model, as the page calls it: a feed-forward pair, or a preset with fields of its own.
FFN = "ffn"
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "attention": {"kind": "decoder-attention", "projection": False},
    "attention and o_proj": {"kind": "decoder-attention"},
    "decoder block": {"kind": "decoder-block"},
    "decoder layer": {"kind": "decoder-layer"},
}
WHAT = (FFN, *PRESETS)
#: Of presets that have runs: theirs.
RUNS: Mapping[str, tuple[str, ...]] = {
    "decoder-block": tuple(map(str, Run)),
    "decoder-layer": tuple(map(str, LayerRun)),
}
_OF_ATTENTION = ("sequences", "max_length", "new_tokens")


class SubmitForm(View):
    """What was filled in, as text; a model gives the sizes, the activation and the gate."""

    what: str = Field(default=FFN, description="a feed-forward pair, or what of a model's decoder layer")
    model: str = Field(default="", description="a model's name; empty for the sizes that are given")
    tp: str = Field(default="1", description="ranks that share the model's layer")
    run: str = Field(default="", description="of a block or a layer: all of it where empty, or the ops of a run")
    sequences: str = Field(default="1", description="of an attention: sequences of a launch")
    max_length: str = Field(default="1024", description="of an attention: tokens of the longest context")
    new_tokens: str = Field(default="1", description="of an attention: of each sequence")
    page_tokens: str = Field(default="", description="of an attention: of a page of its cache; contiguous where empty")
    m: str = Field(default="16", description="rows, or several of them: 1, 16, 64")
    d_in: str = "4096"
    d_hidden: str = "14336"
    d_out: str = "4096"
    activation: str = "identity"
    gated: str = ""
    dtype: str = "fp16"
    target: str = ""
    trials: str = "60"
    seconds: str = "600"
    patience: str = Field(default="", description="trials without progress that end a search; empty for none")
    priors: str = Field(default=str(PriorsChoice.NEAREST), description="whether it begins with earlier winners")
    energy_within: str = Field(
        default="",
        description="per cent over the fastest, within which the least energy is taken; empty for the fastest",
    )
    project: str = ""
    labels: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self:
        """Takes the fields that it knows."""
        return cls(**{name: value for name, value in fields.items() if name in cls.model_fields})

    def body(self) -> dict[str, Any]:
        """Of `POST /jobs` for one number of rows, and of `POST /batches` for several: these learn from each other.

        Raises:
            InvalidInput: names the field that is no number, or out of range; the API checks the rest.
        """
        body: dict[str, Any] = {
            "budget": {"trials": _whole("trials", self.trials), "seconds": _number("seconds", self.seconds)}
        }
        if self.patience:
            body["budget"]["patience"] = _whole("patience", self.patience)
        if self.priors != PriorsChoice.NEAREST:
            body["priors"] = self.priors
        if self.energy_within:
            body["objective"] = {"energy_within_percent": _number("energy_within", self.energy_within)}
        if self.target:
            body["target"] = self.target
        if self.project:
            body["project"] = self.project
        labels = [label.strip() for label in self.labels.split(",") if label.strip()]
        if labels:
            body["labels"] = labels
        if self.what != FFN:
            return {"pair": self._preset(), **body}
        sizes, rows = self._sizes(), self._rows()
        if len(rows) == 1:
            return {"pair": {"kind": "ffn", "m": rows[0], **sizes}, **body}
        return {"shapes": [{"m": rows, **sizes}], **body}

    def _preset(self) -> dict[str, Any]:
        """A model's attention, block or layer."""
        if self.what not in PRESETS:
            raise InvalidInput("what", f"{self.what!r} is none that is known", f"choose one of {', '.join(WHAT)}")
        if self.model not in MODELS:
            problem = f"{self.model!r} is none that is known" if self.model else f"is missing for {self.what}"
            raise InvalidInput("model", problem, f"choose one of {', '.join(MODELS)}")
        pair = {**PRESETS[self.what], "model": self.model, "tp": _whole("tp", self.tp), "dtype": self.dtype}
        runs = RUNS.get(pair["kind"], ())
        if self.run and self.run not in runs:
            remedy = f"choose one of {', '.join(runs)}" if runs else "leave it out"
            raise InvalidInput("run", f"{self.what} has none that is called {self.run}", remedy)
        pair |= {"run": self.run} if self.run else {}
        if pair["kind"] == "decoder-block":
            return pair | {"m": _whole("m", self.m)}
        pages = {"page_tokens": _whole("page_tokens", self.page_tokens)} if self.page_tokens else {}
        return pair | {name: _whole(name, getattr(self, name)) for name in _OF_ATTENTION} | pages

    def _rows(self) -> list[int]:
        rows = sorted({_whole("m", text.strip()) for text in self.m.split(",") if text.strip()})
        if not 1 <= len(rows) <= MAX_ROWS:
            raise InvalidInput("m", f"gives {len(rows)} numbers of rows", f"give 1 to {MAX_ROWS}, e.g. 1, 16, 64")
        return rows

    def _sizes(self) -> dict[str, Any]:
        if not self.model:
            sizes = {name: _whole(name, getattr(self, name)) for name in _SIZES}
            gated = {"gated": True} if self.gated else {}
            return {**sizes, "dtype": self.dtype, "activation": self.activation, **gated}
        if self.model not in MODELS:
            raise InvalidInput("model", f"{self.model!r} is none that is known", f"choose one of {', '.join(MODELS)}")
        model, tp = MODELS[self.model], _whole("tp", self.tp)
        if model.intermediate % tp:
            problem = f"is {tp}, and the intermediate of {self.model} has {model.intermediate} columns"
            raise InvalidInput("tp", problem, "give a number of ranks that divides it")
        sizes = {"d_in": model.hidden, "d_hidden": model.intermediate // tp, "d_out": model.hidden}
        return {**sizes, "dtype": self.dtype, "activation": "silu", "gated": True}


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise InvalidInput(name, f"should be a positive whole number, got {text!r}", "e.g. 16")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise InvalidInput(name, f"should be a positive number, got {text!r}", "e.g. 600")
    return value


def path_of(body: Mapping[str, Any]) -> str:
    """Where a body is posted to."""
    return "/jobs" if "pair" in body else "/batches"


def as_curl(url: str, body: Mapping[str, Any]) -> str:
    """The request as a command."""
    sent = shlex.quote(json.dumps(body))
    return f"curl {url}{path_of(body)} -H 'content-type: application/json' -d {sent}"


def as_client(url: str, body: Mapping[str, Any]) -> str:
    """The same by `tuner-client`."""
    pair, budget = body["pair"] if "pair" in body else body["shapes"][0], body["budget"]
    preset = pair["kind"] if pair.get("kind", FFN) != FFN else ""
    spelled = ("model", "tp", "run", *_OF_ATTENTION, "page_tokens", *_SIZES, "activation", "dtype")
    options = {"preset": preset} if preset else {}
    if "m" in pair:
        options["m"] = ",".join(map(str, pair["m"] if isinstance(pair["m"], list) else [pair["m"]]))
    options |= {name.replace("_", "-"): pair[name] for name in spelled if name in pair}
    options |= {name: body[name] for name in ("target", "project", "priors") if name in body}
    options |= {**budget, "seconds": f"{budget['seconds']:g}"}
    if "objective" in body:
        options["energy-within"] = f"{body['objective']['energy_within_percent']:g}"
    named = [*options.items(), *(("label", one) for one in body.get("labels", ()))]
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in named]
    flags = ["--gated"] if pair.get("gated") else [] if pair.get("projection", True) else ["--no-projection"]
    return " ".join(["tuner-client", "--url", url, "submit", *words, *flags])

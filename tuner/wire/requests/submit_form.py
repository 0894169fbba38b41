"""The form for submitting jobs: its fields as a body of `POST /jobs` or `POST /batches`, and as commands."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, get_args

from pydantic import Field, create_model

from tuner.core.problem.asked import AskedWorkload, asked_workloads, listed, parameter_names
from tuner.core.problem.ops.codec import fields_of, hints_of
from tuner.core.trial.job import PriorsChoice
from tuner.errors import InvalidInput
from tuner.wire.base.view import View

#: How many numbers of rows a ladder may have; each of them is a separate search.
MAX_ROWS = 40
#: Digits of a number, and characters of a wrong value in a message.
_MOST_DIGITS, _MOST_ECHO = 10, 60
#: Pairs for which the page accepts several numbers of rows.
FFN = "ffn"
#: What can be tuned, by its name on the page: how it is described in a request, and the fixed fields that go with it.
WHAT: Mapping[str, tuple[type[AskedWorkload], Mapping[str, Any]]] = {
    words: (one, said) for one in asked_workloads().values() for words, said in (one.CHOICES or {one.KIND: {}}).items()
}
#: The fields of a model. The model also determines the sizes of pairs that are described in other ways.
_OF_MODEL = ("model", "tp")


@dataclass(frozen=True, kw_only=True)
class Input:
    """A field of the page."""

    name: str
    #: Its label, and a longer description.
    label: str
    title: str
    #: Its initial value.
    value: str
    #: The choices; empty if the value is typed.
    choices: tuple[str, ...]
    #: The text of the default choice; empty if there is none.
    usual: str
    #: The entries of `WHAT` for which it is shown.
    whats: tuple[str, ...]
    #: The fields whose values a model determines.
    given_by_model: tuple[str, ...]
    is_check: bool = False


def _inputs() -> Iterator[Input]:
    own: dict[str, list[tuple[str, dataclasses.Field[Any], Any]]] = {}
    for what, (one, said) in WHAT.items():
        called, hints = parameter_names(one), hints_of(one)
        for field in fields_of(one):
            if field.name in called and field.name not in said:
                own.setdefault(called[field.name], []).append((what, field, _plain(hints[field.name])))
        for name in (*_OF_MODEL,) if one.by_model else ():
            own.setdefault(name, []).append((what, *_example(name)))
    for name, entries in own.items():
        (_, field, hint), whats = entries[0], tuple(what for what, *_ in entries)
        words = dict.fromkeys(choice for _, field, hint in entries for choice in _choices(field, hint))
        is_check = hint is bool and not field.default
        value = _filled_in([field for _, field, _ in entries])
        yield Input(
            name=name,
            label=field.metadata.get("label", name.replace("_", " ").capitalize()),
            title="; ".join(dict.fromkeys(str(field.metadata.get("doc", "")) for _, field, _ in entries)),
            value=value,
            choices=() if is_check else tuple(words),
            usual="" if value else "none" if field.default is MISSING else "as usual",
            whats=whats,
            given_by_model=tuple(what for what in whats if name in WHAT[what][0].by_model),
            is_check=is_check,
        )


def _filled_in(entries: list[dataclasses.Field[Any]]) -> str:
    """The initial value of a field: an example if it is required, otherwise the default that all `entries` share."""
    if entries[0].default is MISSING:
        return str(entries[0].metadata.get("example", ""))
    defaults = {field.default for field in entries}
    return _text(entries[0].default) if len(defaults) == 1 else ""


def _example(name: str) -> tuple[dataclasses.Field[Any], Any]:
    """The field called `name` in the description by model."""
    one = next(one for one in asked_workloads().values() if name in parameter_names(one))
    return next(field for field in fields_of(one) if field.name == name), _plain(hints_of(one)[name])


def _choices(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return tuple(map(str, hint))
    return ("yes", "no") if hint is bool else tuple(map(str, field.metadata.get("choices", ())))


def _text(default: Any) -> str:
    return "" if default is None or isinstance(default, bool) else str(default)


def _plain(hint: Any) -> Any:
    """The type without None."""
    return next((one for one in get_args(hint) if one is not NoneType), hint) if NoneType in get_args(hint) else hint


#: All inputs, by name; inputs that are shown for the most entries of `WHAT` come first.
INPUTS = {one.name: one for one in sorted(_inputs(), key=lambda one: -len(one.whats))}


class _Form(View):
    """The form's values, as text; a model determines the sizes, the activation and the gate."""

    what: str = Field(default=FFN, description="what to tune: one of the page's choices")
    dtype: str = "fp16"
    target: str = ""
    trials: str = "60"
    seconds: str = "600"
    patience: str = Field(
        default="", description=("the search stops after this many trials without progress; empty for no limit")
    )
    priors: str = Field(default=str(PriorsChoice.NEAREST), description="whether it starts from earlier winners")
    energy_within: str = Field(
        default="",
        description="percent by which the kernel with the least energy may be slower; empty: only time counts",
    )
    project: str = ""
    labels: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self:
        """Takes the fields that the form knows."""
        return cls(**{name: value for name, value in fields.items() if name in cls.model_fields})

    def body(self) -> dict[str, Any]:
        """The body of `POST /jobs` for one number of rows; for several, of `POST /batches`, whose jobs share results.

        Raises:
            InvalidInput: a field is not a number, or out of range; the API checks the rest.
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
        pair = self._pair()
        if isinstance(pair.get("m"), list):
            return {"shapes": [{name: value for name, value in pair.items() if name != "kind"}], **body}
        return {"pair": pair, **body}

    def _pair(self) -> dict[str, Any]:
        """What to tune, in the form that `POST /jobs` expects; an FFN may have several numbers of rows."""
        if self.what not in WHAT:
            raise InvalidInput("what", f"{self.what!r} is unknown", f"choose one of {', '.join(WHAT)}")
        one, said = WHAT[self.what]
        texts = {name: str(getattr(self, name)) for name in INPUTS}
        given = self._by_model(one, texts)
        for name, text in texts.items():
            if text not in ("", INPUTS[name].value) and self.what not in INPUTS[name].whats:
                raise InvalidInput(name, f"is {text!r}, but {self.what} has no such field", "leave it out")
        pair = {"kind": one.KIND, "dtype": self.dtype, **said, **given}
        called, hints = parameter_names(one), hints_of(one)
        for field in fields_of(one):
            name, hint = called.get(field.name, ""), _plain(hints[field.name])
            if not name or field.name in pair:
                continue
            if texts[name] == "" and field.default is MISSING:
                raise InvalidInput(name, f"is missing for {self.what}", "use it")
            if texts[name] not in ("", _text(field.default)):
                rows = name == "m" and one.KIND == FFN
                pair[field.name] = self._rows() if rows else _read(name, hint, texts[name], field)
        return pair

    def _by_model(self, one: type[AskedWorkload], texts: dict[str, str]) -> dict[str, Any]:
        """The fields that a model determines for pairs that are described in other ways; removes model and ranks from
        the texts.
        """
        if not one.by_model:
            return {}
        model, tp = texts.pop("model"), texts.pop("tp")
        return {**one.of_model(model, _whole("tp", tp))} if model else {}

    def _rows(self) -> int | list[int]:
        text = str(getattr(self, "m", ""))
        rows = sorted({_whole("m", text.strip()) for text in text.split(",")})
        if not 1 <= len(rows) <= MAX_ROWS:
            raise InvalidInput("m", f"has {len(rows)} numbers of rows", f"use 1 to {MAX_ROWS}, e.g. 1, 16, 64")
        return rows if len(rows) > 1 else rows[0]


if TYPE_CHECKING:
    SubmitForm = _Form
else:
    SubmitForm = create_model(
        "SubmitForm",
        __base__=_Form,
        __doc__=_Form.__doc__,
        **{name: (str, Field(default=one.value, description=one.title)) for name, one in INPUTS.items()},
    )


def _read(name: str, hint: Any, text: str, field: dataclasses.Field[Any]) -> Any:
    """The text of a field in its kind's type; the API checks the rest."""
    if hint is bool:
        return text != "no"
    if hint is int:
        return _whole(name, text)
    if hint is float:
        return _number(name, text)
    choices = _choices(field, hint)
    if choices and text not in choices:
        raise InvalidInput(name, f"{text[:_MOST_ECHO]!r} is unknown", f"choose one of {', '.join(choices)}")
    return listed(name, hint, text)


def _whole(name: str, text: str) -> int:
    # Python refuses to read thousands of digits.
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not 1 <= int(text) < 2**31:
        raise InvalidInput(name, f"should be a positive whole number, got {text[:_MOST_ECHO]!r}", "e.g. 16")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise InvalidInput(name, f"should be a positive number, got {text[:_MOST_ECHO]!r}", "e.g. 600")
    return value


def path_of(body: Mapping[str, Any]) -> str:
    """The path that the body is posted to."""
    return "/jobs" if "pair" in body else "/batches"


def as_curl(url: str, body: Mapping[str, Any]) -> str:
    """The request as a `curl` command."""
    sent = shlex.quote(json.dumps(body))
    return f"curl {url}{path_of(body)} -H 'content-type: application/json' -d {sent}"


def as_client(url: str, body: Mapping[str, Any]) -> str:
    """The request as a `tuner-client` command."""
    pair, budget = body["pair"] if "pair" in body else {"kind": FFN, **body["shapes"][0]}, body["budget"]
    options = {name: body[name] for name in ("target", "project", "priors") if name in body}
    options |= {**budget, "seconds": f"{budget['seconds']:g}"}
    if "objective" in body:
        options["energy-within"] = f"{body['objective']['energy_within_percent']:g}"
    named = [*options.items(), *(("label", one) for one in body.get("labels", ()))]
    words = [*_spelled(pair), *(word for name, value in named for word in (f"--{name}", str(value)))]
    return shlex.join(["tuner-client", "--url", url, "submit", str(pair["kind"]), *words])


def _spelled(pair: Mapping[str, Any]) -> Iterator[str]:
    """The workload as options of its kind."""
    one = asked_workloads()[pair["kind"]]
    called = {**parameter_names(one), "dtype": "dtype"}
    for field in fields_of(one):
        if field.name not in pair:
            continue
        name, value = called[field.name].replace("_", "-"), pair[field.name]
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--{field.metadata.get('off', f'no-{name}')}"
            continue
        several = list(value.values()) if isinstance(value, dict) else value
        yield from (f"--{name}", ",".join(map(str, several)) if isinstance(several, list) else str(several))

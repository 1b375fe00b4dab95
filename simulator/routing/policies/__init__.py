"""Balancing policies, each a file of this folder that is found by its name.

A policy's file has ``Options``, a frozen dataclass of its settings, and ``apply(planned, replayed, setting, options)``,
which plans on the table *planned* and says what the policy makes of the table *replayed*: another window or workload
shows how a plan ages. Where it has a plan that can age, the file says ``PLANS = True``. The first line of its docstring
describes it.
"""

from __future__ import annotations

import pkgutil
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import Any

from simulator.documents import Problem
from simulator.documents.problem import nearest
from simulator.routing.error import RoutingError
from simulator.routing.outcome import Outcome, Setting
from simulator.routing.table import RoutingTable


def policy_names() -> list[str]:
    """The policies there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def describe(name: str) -> str:
    """What the policy *name* does, in a sentence."""
    return (_module(name).__doc__ or "").partition("\n")[0]


def plans(name: str) -> bool:
    """Whether the policy *name* plans on one table what it does to another."""
    return bool(getattr(_module(name), "PLANS", False))


def apply_policy(name: str, planned: RoutingTable, replayed: RoutingTable, setting: Setting, **options: Any) -> Outcome:
    """Apply the policy *name*, planned on *planned*, to *replayed*; *options* are the fields of its ``Options``.

    Raise :exc:`RoutingError` with all that is wrong with the names, the options and the setting.
    """
    module = _module(name)
    if planned.counts.shape != replayed.counts.shape:
        message = f"is planned on {planned.counts.shape} layers and experts and replayed on {replayed.counts.shape}"
        raise RoutingError([Problem("policy", None, name, message)])
    known = [field.name for field in fields(module.Options)]
    wrong = [word for word in options if word not in known]
    if wrong:
        raise RoutingError(
            Problem("policy", None, f"{name}.{word}", f"is not an option; {nearest(word, known)}") for word in wrong
        )
    try:
        outcome: Outcome = module.apply(planned, replayed, setting, module.Options(**options))
    except ValueError as error:
        raise RoutingError([Problem("policy", None, name, str(error))]) from None
    return outcome


def _module(name: str) -> ModuleType:
    if name not in policy_names():
        raise RoutingError([Problem("policy", None, "", f"no policy {name!r}; {nearest(name, policy_names())}")])
    return import_module(f"{__name__}.{name}")

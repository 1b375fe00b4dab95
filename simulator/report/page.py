"""Pages of one file: a template, figures for people, explained words, plots. Nothing is loaded from anywhere.

Everything that a page needs is written into it, the drawing library too where there are plots, and its content security
policy lets nothing else in. Jinja2 escapes what comes from users.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.report.glossary import explanation
from simulator.report.headline import tier_label, time_label
from simulator.report.tables import percent
from simulator.units import human_bytes, human_time, plain_number

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).with_name("templates")
_FILTERS = {
    "bytes": human_bytes,
    "seconds": human_time,
    "percent": percent,
    "number": plain_number,
    "tier": tier_label,
    "time_label": time_label,
    "explanation": explanation,
}


def page(template: str, **content: Any) -> str:
    """The page that *template* makes of *content*."""
    return _environment().get_template(template).render(content)


@lru_cache(1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(_FILTERS)
    # Read apart from the templates: as one of them, a megabyte of somebody else's code would be parsed.
    made.globals["asset"] = lambda name: (_FOLDER / name).read_text(encoding="utf-8")
    return made

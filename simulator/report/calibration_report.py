"""A calibration as one page that works offline: every fit drawn, its figures with intervals, where it comes from."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from simulator.report.calibration_chart import fit_chart, form_chart
from simulator.report.page import page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.calibration.profile import Profile
    from simulator.calibration.refit import Estimate

DOTS_PER_INCH = 90


@dataclass(frozen=True, slots=True)
class _Section:
    """A fit as the page has it."""

    alt: str
    picture: str
    """A PNG in base 64."""
    estimates: Iterable[Estimate]
    errors: str
    notes: str = ""


def calibration_html(profile: Profile) -> str:
    """The page of *profile*."""
    return page("calibration.html", part=profile.part, told=_summary(profile), sections=list(_sections(profile)))


def _sections(profile: Profile) -> Iterator[_Section]:
    for fit in profile.fits:
        kind = fit.curve.kind
        points = [point for point in profile.points if point.kind == kind]
        picture = _picture(fit_chart(kind, points, profile.accelerator, profile.clock_s))
        errors = _errors(fit.used, fit.median_error, fit.worst_error)
        yield _Section(f"Points of {kind} and their fit", picture, fit.estimates, errors, fit.curve.notes)
    for form in profile.forms:
        timed = profile.collectives[form.operation]
        errors = _errors(len(timed), form.median_error, form.worst_error)
        alt = f"Timings of {form.operation} and their form"
        yield _Section(alt, _picture(form_chart(form, timed)), form.estimates, errors)


def _summary(profile: Profile) -> str:
    words = f"Forms as of {profile.like}. A call timed alone holds {profile.clock_s * 1e6:.1f} us of the clock."
    words += " Matmuls longer than 0.65 ms are drawn and not fitted: repeated, they run into the power limit."
    if profile.skewed:
        size, error = profile.skewed[-1]
        words += f" A skewed all-to-all of {size:,} bytes is priced {error:+.1%} off."
    return words


def _errors(points: int, median: float, worst: float) -> str:
    return f"{points} points, median error {median:.1%}, worst {worst:.1%}."


def _picture(figure: Figure) -> str:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return base64.b64encode(file.getvalue()).decode()

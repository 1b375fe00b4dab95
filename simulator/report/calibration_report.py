"""A calibration as one page that works offline: every fit drawn, its figures with intervals, where it comes from."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from simulator.report.calibration_chart import fit_chart, form_chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.calibration.profile import Profile
    from simulator.calibration.refit import Estimate

DOTS_PER_INCH = 90
_STYLE = (
    "body{font:14px sans-serif;max-width:1020px;margin:2em auto;color:#222}"
    "td,th{padding:1px 10px 1px 0;text-align:left;font-size:12px}th{color:#6B7075;font-weight:normal}"
    "img{width:100%}p{color:#6B7075}"
)


def calibration_html(profile: Profile) -> str:
    """The page of *profile*."""
    body = [f"<h1>{escape(profile.part)}, calibrated</h1>", f"<p>{escape(_summary(profile))}</p>"]
    for fit in profile.fits:
        kind = fit.curve.kind
        points = [point for point in profile.points if point.kind == kind]
        body.append(_picture(fit_chart(kind, points, profile.accelerator, profile.clock_s)))
        body.append(_table(fit.estimates))
        body.append(f"<p>{escape(_errors(fit.used, fit.median_error, fit.worst_error))} {escape(fit.curve.notes)}</p>")
    for form in profile.forms:
        timed = profile.collectives[form.operation]
        body += [_picture(form_chart(form, timed)), _table(form.estimates)]
        body.append(f"<p>{escape(_errors(len(timed), form.median_error, form.worst_error))}</p>")
    title = f"<title>rackcast calibrate: {escape(profile.part)}</title>"
    head = f"<!doctype html><html lang='en'><head><meta charset='utf-8'>{title}<style>{_STYLE}</style></head>"
    return f"{head}<body>{''.join(body)}</body></html>\n"


def _summary(profile: Profile) -> str:
    words = f"Forms as of {profile.like}. A call timed alone holds {profile.clock_s * 1e6:.1f} us of the clock."
    words += " Matmuls longer than 0.65 ms are drawn and not fitted: repeated, they run into the power limit."
    if profile.skewed:
        size, error = profile.skewed[-1]
        words += f" A skewed all-to-all of {size:,} bytes is priced {error:+.1%} off."
    return words


def _errors(points: int, median: float, worst: float) -> str:
    return f"{points} points, median error {median:.1%}, worst {worst:.1%}."


def _table(estimates: Iterable[Estimate]) -> str:
    rows = (
        f"<tr><td>{escape(one.name)}</td><td>{one.value:.4g}</td><td>{one.low:.4g} to {one.high:.4g}</td></tr>"
        for one in estimates
    )
    return f"<table><tr><th>figure</th><th>value</th><th>95 %</th></tr>{''.join(rows)}</table>"


def _picture(figure: Figure) -> str:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return f"<img alt='' src='data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}'>"

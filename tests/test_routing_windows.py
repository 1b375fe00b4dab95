from pathlib import Path

import numpy as np
import pytest

from simulator.report.drift_chart import drift_chart
from simulator.routing.trace import Trace
from simulator.routing.windows import windows

# Three windows, one source, two layers, four experts on two ranks; the second window has no rows of layer 1.
COUNTS = np.array(
    [
        [[[3.0, 1, 0, 0], [1, 1, 1, 1]]],
        [[[0.0, 0, 1, 7], [0, 0, 0, 0]]],
        [[[1.0, 1, 1, 1], [2, 4, 1, 1]]],
    ]
)
TRACE = Trace("small", COUNTS, (0, 8, 16), 8, (0,), (0, 1), None)


def test_a_window_is_the_mean_of_the_layers_it_has_rows_of():
    found = windows(TRACE, 2)
    # Rank 0 of window 0: 2 x an even share in layer 0, 1 x in layer 1; of window 2: 1 x, and 6 of 8 rows, 1.5 x.
    assert found.load == pytest.approx(np.array([[1.5, 0.5], [0, 2], [1.25, 0.75]]))
    assert found.rank_max_over_mean == pytest.approx([1.5, 2, 1.25])
    assert found.expert_max_over_mean == pytest.approx([(3 + 1) / 2, 3.5, (1 + 2) / 2])
    assert found.hottest_rank.tolist() == [0, 1, 0]


def test_the_chart_says_whether_the_busiest_rank_changes():
    assert drift_chart(windows(TRACE, 2), "small").texts[0].get_text() == (
        "2 of 2 ranks take turns as the busiest over 3 windows"
    )
    still = Trace("still", COUNTS[[0, 2, 2]], (0, 1, 2), 1, (0,), (0, 1), None)
    assert drift_chart(windows(still, 2), "still").texts[0].get_text() == "Rank 0 is the busiest of 2 in all 3 windows"


def test_the_chart_shows_every_rank_in_every_window_by_first_step():
    chart = drift_chart(windows(TRACE, 2), "small")
    assert chart.axes[1].images[0].get_array().tolist() == [[1.5, 0.25, 1.25], [0.5, 2.0, 0.75]]
    chart.savefig(Path("/dev/null"), format="png")
    assert "8" in [label.get_text() for label in chart.axes[1].get_xticklabels()]

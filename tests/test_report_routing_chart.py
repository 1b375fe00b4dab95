import io

import numpy as np
import pytest

from simulator.report.paper import write_png
from simulator.report.routing_chart import routing_chart
from simulator.routing import RoutingTable

# Two layers of four experts on two ranks: 6 to 2, then even.
TABLE = RoutingTable(np.array([[4.0, 2.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]), "small", recorded_layers=(3, 9))


def test_the_title_says_how_uneven_the_ranks_are():
    words = [text.get_text() for text in routing_chart(TABLE, 2).texts]
    assert words == ["The busiest of 2 ranks gets 1.25 x the mean", "small"]
    assert routing_chart(TABLE, 1).texts[0].get_text() == "One rank holds all"


def test_the_heat_map_shows_popularity_over_the_mean_by_layer_number():
    heat = routing_chart(TABLE, 2).axes[0]
    assert heat.images[0].get_array().tolist() == [[2, 1, 0.5, 0.5], [1, 1, 1, 1]]
    assert [label.get_text() for label in heat.get_yticklabels()] == ["3", "9"]
    assert heat.get_ylabel() == "layer"


def test_layers_without_numbers_are_counted():
    heat = routing_chart(RoutingTable(TABLE.counts, "t"), 2).axes[0]
    assert (heat.get_ylabel(), [label.get_text() for label in heat.get_yticklabels()]) == ("MoE layer", ["0", "1"])


def test_the_curves_are_the_busiest_expert_and_the_busiest_rank():
    expert, rank = routing_chart(TABLE, 2).axes[2].lines
    assert (list(expert.get_xdata()), list(rank.get_xdata())) == ([2.0, 1.0], [1.5, 1.0])


def test_the_busiest_expert_and_rank_are_named():
    names = [text.get_text() for text in routing_chart(TABLE, 2).axes[2].texts]
    assert names[:2] == ["expert 0: 2.0", "rank 0: 1.5"]


def test_bars_are_each_rank_on_average_and_in_its_worst_layer():
    worst, mean = np.split(np.array([bar.get_height() for bar in routing_chart(TABLE, 2).axes[3].patches]), 2)
    assert (worst.tolist(), mean.tolist()) == ([1.5, 1.0], [1.25, 0.75])


def test_the_same_table_gives_the_same_picture():
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        write_png(routing_chart(TABLE, 4), file)
    assert files[0].getvalue() == files[1].getvalue()


def test_experts_that_were_never_chosen_are_as_cold_as_colour_goes():
    table = RoutingTable(np.array([[0.0, 1.0]]), "t")
    assert routing_chart(table, 2).axes[0].images[0].get_array().tolist() == [[0.125, 2.0]]


def test_a_degree_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="must divide"):
        routing_chart(TABLE, 3)

"""Which virtual stage lies where, and who hands over to whom."""

from simulator.program.pipeline import Pipeline


def test_layers_are_shared_evenly_the_first_stages_one_more() -> None:
    assert Pipeline(4).edges(10) == (0, 3, 6, 8, 10)
    assert Pipeline(2, 2).edges(9) == (0, 3, 5, 7, 9)
    assert Pipeline(2, 2, layers=(1, 4, 4, 0)).edges(9) == (0, 1, 5, 9, 9)


def test_chunks_go_round_the_stages() -> None:
    pipeline = Pipeline(3, 2)
    assert [[pipeline.virtual(stage, chunk) for chunk in (0, 1)] for stage in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [[pipeline.before(stage, chunk) for chunk in (0, 1)] for stage in range(3)] == [[None, 2], [0, 0], [1, 1]]
    assert [[pipeline.behind(stage, chunk) for chunk in (0, 1)] for stage in range(3)] == [[1, 1], [2, 2], [0, None]]
    assert [pipeline.begins(stage) for stage in range(3)] == [True, False, False]
    assert [pipeline.ends(stage) for stage in range(3)] == [False, False, True]
    assert (pipeline.round, Pipeline(3).round) == (3, 1)


def test_mirrored_stages_hold_their_own_layers_and_those_of_the_other_end() -> None:
    pipeline = Pipeline(4, 2, mirrored=True)
    assert [[pipeline.virtual(stage, chunk) for chunk in (0, 1)] for stage in range(4)] == [
        [0, 3],
        [1, 2],
        [2, 1],
        [3, 0],
    ]
    assert pipeline.edges(8) == (0, 2, 4, 6, 8)
    assert [pipeline.before(stage, 1) for stage in range(4)] == [1, 2, 3, None]
    assert [pipeline.behind(stage, 1) for stage in range(4)] == [None, 0, 1, 2]
    assert [pipeline.begins(stage) for stage in range(4)] == [True, False, False, True]

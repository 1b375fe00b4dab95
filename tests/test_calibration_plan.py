from simulator.calibration.plan import closer, powers, tables


def shapes(**how):
    return {table.name: table.shapes for table in tables(**how)}


def test_quick_measures_a_part_of_what_a_full_run_does():
    quick, full = shapes(quick=True, gpus=2), shapes(quick=False, gpus=2)
    assert set(quick) == set(full)
    largest_too = {(size, "amax") for size, _ in full["fp8_casts"]}
    assert all(set(quick[name]) <= set(full[name]) | largest_too for name in quick)
    assert len(quick["gemm"]) == 173
    assert len(full["gemm"]) == 324


def test_quick_is_expected_to_take_under_ten_minutes():
    assert 60 < sum(table.expected_s for table in tables(quick=True, gpus=2)) < 600


def test_collectives_need_two_gpus():
    assert set(shapes(quick=True, gpus=2)) - set(shapes(quick=True, gpus=1)) == {"collectives", "interference"}


def test_collectives_are_timed_among_a_part_of_the_gpus_too():
    groups = {gpus: sorted({ranks for _, ranks in shapes(quick=True, gpus=gpus)["collectives"]}) for gpus in (2, 6, 8)}
    assert groups == {2: [2], 6: [2, 4, 6], 8: [2, 4, 8]}


def test_sizes_between():
    assert powers(4, 8, quick=True, step=2) == (16, 64, 256)
    # sqrt(16 * 64) = 32 and sqrt(64 * 256) = 128
    assert powers(4, 8, quick=False, step=2) == (16, 32, 64, 128, 256)
    # sqrt(128 * 512) = 256; sqrt(16 * 128) = 45.3, the nearest multiple of 16 is 48
    assert closer((16, 128, 512), quick=False) == (16, 48, 128, 256, 512)
    assert closer((2**22, 2**23), quick=False) == (2**22, 5_931_008, 2**23)


def test_other_shapes_have_another_digest():
    quick, full = ({t.name: t.digest for t in tables(quick=how, gpus=1)} for how in (True, False))
    assert quick["gemm"] != full["gemm"]
    assert quick["attention"] == full["attention"]

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distance, drawn, heads

from kernels import kda, kda_backward
from kernels.reference import kda as plain

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
CLOSE = 1e-4


@pytest.mark.parametrize("lengths", [(1,), (16,), (50,), (3, 32, 17)])
def test_forward_of_sequences_of_any_length(lengths: tuple[int, ...]) -> None:
    inputs = heads(sum(lengths), 2, 16)
    begin = drawn(len(lengths), 2, 16, 16, seed=9)
    found, wanted = kda.kda_forward(inputs, lengths, begin), plain.kda_recurrent(inputs, lengths, begin)
    assert max(distance(a, b) for a, b in zip(found, wanted, strict=True)) < CLOSE


@pytest.mark.parametrize(("lengths", "width"), [((64,), 16), ((3, 33, 16), 16), ((20,), 128)])
def test_gradients_of_every_input(lengths: tuple[int, ...], width: int) -> None:
    inputs, begin = heads(sum(lengths), 2, width), drawn(len(lengths), 2, width, width, seed=9)
    gradients = drawn(sum(lengths), 2, width, seed=10), drawn(len(lengths), 2, width, width, seed=11)
    found, wanted = [], []
    for function, into in ((kda_backward.kda, found), (plain.kda_recurrent, wanted)):
        leaves = [x.clone().requires_grad_() for x in (*inputs, begin)]
        torch.autograd.backward(function(leaves[:-1], lengths, leaves[-1]), gradients)
        into += [leaf.grad for leaf in leaves]
    assert max(distance(a, b) for a, b in zip(found, wanted, strict=True)) < CLOSE


def test_keys_that_are_all_alike_do_not_blow_up_the_inverse() -> None:
    inputs = heads(64, 1, 16)
    inputs[1][:] = inputs[1][:1]
    inputs[3][:] = -30.0
    inputs[4][:] = 10.0
    assert distance(kda.kda_forward(inputs)[0], plain.kda_recurrent(inputs)[0]) < CLOSE


def test_the_strongest_decay_at_every_token() -> None:
    inputs = heads(64, 1, 16)
    inputs[3][:] = 30.0
    found, wanted = kda.kda_forward(inputs, lower_bound=-10.0), plain.kda_recurrent(inputs, lower_bound=-10.0)
    assert distance(found[0], wanted[0]) < CLOSE


def test_small_operators_compute_the_same() -> None:
    inputs = heads(128, 2, 16)
    assert distance(plain.kda_small_operators(inputs), plain.kda_recurrent(inputs)[0]) < 1e-5


def test_decode_goes_on_where_the_forward_pass_ends() -> None:
    inputs = heads(9, 2, 16)
    before = [x[:8] for x in inputs[:5]] + inputs[5:]
    _, state = kda.kda_forward(before)
    last = [x[8:] for x in inputs[:5]] + inputs[5:]
    found = kda.kda_decode(last, state)
    wanted, final = plain.kda_recurrent(inputs)
    assert distance(found[0], wanted[8]) < CLOSE
    assert distance(state, final) < CLOSE


def test_inputs_that_do_not_go_together_are_all_named() -> None:
    inputs = heads(8, 1, 16)
    inputs[1] = inputs[1][:7]
    with pytest.raises(ValueError, match=r"k is \(7, 1, 16\); lengths sum to 9, .*; lower_bound is -11"):
        kda.kda_forward(inputs, (9,), lower_bound=-11)

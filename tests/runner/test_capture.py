"""What a CPU can show of the CUDA step: the operators that a graph would hold, and that a recording replays to the bit.

On the meta device the step takes the way that it takes on CUDA, operator by operator, with shapes and no values.
"""

import gc
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runner import environment
from runner.train import Trainer, scale, to_uint8
from vqkit.nn import nearest, quantizer

KNOBS = [
    {},
    {"trainability": "both", "dead_code_restart": 2, "latent_normalization": "l2"},
    {"trainability": "coefficients", "basis_init": "identity", "dead_code_restart": 3, "coefficient_init": "data"},
    {"gradient_estimator": "rotation", "latent_normalization": "layer_norm"},
    {"projection_lr_multiplier": 10.0, "projection_warmup_steps": 6},
    {"trainability": "none"},
]
EACH = pytest.mark.parametrize("knobs", KNOBS, ids=range(len(KNOBS)))


@pytest.fixture(scope="module", autouse=True)
def _pinned():
    environment.pin("cpu", 1)


class AsOnCuda(TorchDispatchMode):
    """Fails on what a CUDA graph can't hold or what CUDA doesn't repeat to the bit; remembers the operators.

    Values that go back to the host, and shapes that depend on them, wait for the device; so does a host tensor that
    takes part. ``UNORDERED`` are the operators that ``torch.use_deterministic_algorithms`` documents, by the beginnings
    of their names: those that raise on CUDA, and those that sort in order to be deterministic.
    """

    UNORDERED = (
        "index_add", "index_copy", "index_put", "_index_put", "index_reduce", "put", "scatter", "cumsum", "median",
        "nanmedian", "kthvalue", "histc", "bincount", "embedding", "repeat_interleave", "_cdist_backward",
        "grid_sampler", "upsample", "replication_pad", "reflection_pad", "adaptive_", "avg_pool3d", "max_pool3d",
        "fractional_max_pool", "max_unpool", "nll_loss", "_ctc_loss", "resize",
    )  # fmt: skip

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.overloadpacket.__name__
        self.names.append(name)
        assert torch.Tag.data_dependent_output not in function.tags, f"{name} reads a value back"
        assert torch.Tag.dynamic_output_shape not in function.tags, f"{name} has a shape that depends on values"
        assert torch.Tag.nondeterministic_seeded not in function.tags, f"{name} is random"
        assert not name.startswith(self.UNORDERED), f"{name} adds up or sorts in no order of its own"
        adam = name == "_fused_adam_"  # changes tensors in place, and has no meta kernel for a rate in a tensor
        result = None if adam else function(*arguments, **(keywords or {}))
        held = [leaf for leaf in tree_leaves((arguments, keywords, result)) if isinstance(leaf, torch.Tensor)]
        assert all(tensor.device.type == "meta" for tensor in held), f"{name} has a tensor on the host"
        return result


@pytest.fixture
def on_meta(tiny, images, monkeypatch):
    """A trainer on the meta device; ``fused`` puts a stand-in for the Triton kernel in its place."""

    def make(fused, knobs):
        def found(latents, codes, centre, slack, tiny):
            assert (centre.shape, type(slack), type(tiny)) == (codes.shape[1:], float, float)
            return torch.empty(len(latents), dtype=torch.int64, device=latents.device)

        monkeypatch.setattr(nearest, "fused_search", lambda: found if fused else None)
        monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # there is none on meta
        monkeypatch.setattr(Trainer, "_set_coefficients", lambda *_, **__: None)  # between epochs, from values
        return Trainer(tiny, tiny.baseline | knobs, 101, "meta", images)

    return make


@EACH
@pytest.mark.parametrize("fused", [True, False])
def test_a_graph_can_hold_the_step(on_meta, fused, knobs):
    trainer = on_meta(fused, knobs)
    with AsOnCuda() as seen:
        trainer.step()
    # torch's own operators, not those that a CPU computes faster
    assert seen.names.count("convolution") == 6
    assert seen.names.count("convolution_backward") == 6
    assert {"addmm", "_fused_adam_"} <= {*seen.names}


@EACH
@pytest.mark.parametrize("fused", [True, False])
def test_evaluation_repeats_to_the_bit(on_meta, fused, knobs):
    trainer = on_meta(fused, knobs)
    with AsOnCuda() as seen, torch.no_grad():
        output = trainer.model(scale(trainer.evaluation_images))
        assert to_uint8(output.reconstruction_NCHW).shape == (16, 32, 32, 3)
    assert seen.names.count("convolution") == 6


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda x, i: x.sum().item(), "reads a value back"),
        (lambda x, i: torch.equal(x, x), "reads a value back"),
        (lambda x, i: x.nonzero(), "shape that depends on values"),
        (lambda x, i: x[x > 0], "shape that depends on values"),
        (lambda x, i: torch.randn_like(x), "is random"),
        (lambda x, i: x.index_add_(0, i, x), "index_add_ adds up or sorts"),
        (lambda x, i: x.index_copy_(0, i, x), "index_copy_ adds up or sorts"),
        (lambda x, i: x.__setitem__(i, 1.0), "index_put_ adds up or sorts"),
        (lambda x, i: x.scatter_add_(0, i, x), "scatter_add_ adds up or sorts"),
        (lambda x, i: x.cumsum(0), "cumsum adds up or sorts"),
        (lambda x, i: x.copy_(torch.ones(3)), "on the host"),
        (lambda x, i: torch.ones(3), "on the host"),
    ],
)
def test_the_check_of_operators_can_fail(act, reason):
    x, i = torch.empty(3, device="meta"), torch.empty(3, dtype=torch.int64, device="meta")
    with pytest.raises(AssertionError, match=reason), AsOnCuda():
        act(x, i)


class Recorded(TorchDispatchMode):
    """What ``CapturedStep`` does, on a CPU: the operators of one call, which replay on the tensors of that call.

    Recording executes the step as well, so the first call after it replays nothing.
    """

    def __init__(self, step):
        super().__init__()
        self.operators, self.fresh = [], True
        with self:
            step()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        self.operators.append((function, arguments, keywords or {}, result))
        return result

    @torch.no_grad()
    def __call__(self):
        if self.fresh:
            self.fresh = False
            return
        for function, arguments, keywords, result in self.operators:
            again = function(*arguments, **keywords)
            for held, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(held, torch.Tensor) and held.data_ptr() != new.data_ptr():
                    held.copy_(new)


def trained(tiny, images, knobs, capture=None, epochs=3):
    """Step log, evidence and weights of three epochs."""
    trainer = Trainer(tiny, tiny.baseline | knobs, 101, "cpu", images, capture)
    logs = [trainer.epoch(number) for number in range(1, epochs + 1)]
    return {"log": np.concatenate(logs), "applied": trainer.applied(), **trainer.measure(), **trainer.state()}


@pytest.fixture
def search(monkeypatch):
    monkeypatch.setattr(quantizer, "nearest_codes", nearest.nearest_codes_float64)  # the CPU's own has branches


@EACH
def test_a_recording_of_the_second_step_replays_every_later_one_to_the_bit(tiny, images, search, knobs):
    eager, replayed = trained(tiny, images, knobs), trained(tiny, images, knobs, Recorded)
    for name, value in eager.items():
        assert np.array_equal(replayed[name], value), name


def _replaced(trainer):
    trainer.order = trainer.order.clone()


def _read_once(trainer):
    trainer.optimizer.groups[1].rate = float(trainer.optimizer.steps + 1) * 1e-5


@pytest.mark.parametrize(("method", "fault"), [("_restart_dead_codes", _replaced), ("_warm_up", _read_once)])
def test_the_faults_that_only_a_graph_has_show_in_the_replay(tiny, images, search, monkeypatch, method, fault):
    """A tensor that an epoch puts in the place of another, and a number that the step reads from one."""
    monkeypatch.setattr(Trainer, method, lambda self, *_: fault(self))
    eager, replayed = trained(tiny, images, {}), trained(tiny, images, {}, Recorded)
    assert not np.array_equal(replayed["log"], eager["log"])


def test_a_step_leaves_nothing_of_autograd_behind(tiny, images, monkeypatch):
    """Nodes that outlive a step would tie a capture to the stream on which the step before it ran."""
    nodes, forward = [], quantizer.SelectRows.forward

    def watched(ctx, *arguments):
        nodes.append(weakref.ref(ctx))
        return forward(ctx, *arguments)

    monkeypatch.setattr(quantizer.SelectRows, "forward", staticmethod(watched))
    trainer = Trainer(tiny, tiny.baseline, 101, "cpu", images)
    gc.disable()  # what reference counts alone don't free is still there when a capture begins
    try:
        trainer.step()
        assert [node() for node in nodes] == [None]
    finally:
        gc.enable()


@EACH
def test_what_a_graph_holds_by_address_stays_where_it_is(tiny, images, knobs):
    trainer = Trainer(tiny, tiny.baseline | knobs, 101, "cpu", images)

    def addresses():
        optimizer = trainer.optimizer
        held = [*trainer.model.parameters(), optimizer.steps, trainer.train_images, trainer.order, trainer.log]
        held += [trainer.rows, trainer.position, trainer.total, trainer.usage, trainer.membership]
        for group in optimizer.groups:
            rate = [group.rate] if isinstance(group.rate, torch.Tensor) else []
            held += [*group.tensors, *group.means, *group.squares, *rate]
        return [tensor.data_ptr() for tensor in held]

    before = addresses()
    for number in (1, 2, 3):
        trainer.epoch(number)
        trainer.measure()
        assert addresses() == before

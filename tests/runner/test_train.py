"""The training loop: one trajectory, order from (seed, epoch), ended runs, trainability, restarts, warm-up."""

import hashlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import contract_spec

from runner import environment
from runner.train import Ended, Progress, Trainer, epoch_order, run_epochs, scale, to_uint8
from vqkit.formats.contract import Contract
from vqkit.formats.run import STEP_COLUMNS, state_layout
from vqkit.nn.adam import Group


@pytest.fixture(scope="module", autouse=True)
def _pinned():
    environment.pin("cpu", 1)


@pytest.fixture
def make(tiny, images):
    return lambda seed=101, **knobs: Trainer(tiny, tiny.baseline | knobs, seed, "cpu", images)


def train(trainer, marks=(0, 1, 2), stop=lambda: None):
    seen, progress = {}, Progress()
    try:
        run_epochs(
            trainer,
            marks,
            progress,
            on_mark=lambda mark, evidence, weights: seen.update({mark: (evidence, weights)}),
            on_epoch=lambda *_: None,
            stop=stop,
        )
    except Ended as ended:
        return seen, progress, ended
    return seen, progress, None


def digest(evidence, weights):
    state = hashlib.sha256()
    for arrays in (evidence, weights):
        for name in sorted(arrays):
            state.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return state.hexdigest()


def test_one_trajectory_serves_every_mark(make):
    whole, _, _ = train(make(), (0, 1, 2))
    part, _, _ = train(make(), (1,))
    assert digest(*whole[1]) == digest(*part[1])
    assert digest(*whole[1]) != digest(*whole[2])


def test_the_step_is_the_plain_loop_written_out(make, images):
    """Two epochs by hand: torch's own Adam (not fused), autograd on the written-out loss, the same order."""
    trainer = make(commitment_weight=0.7)
    model = make(commitment_weight=0.7).model
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=trainer.contract.training["learning_rate"], fused=False, foreach=False)
    x_all = torch.tensor(images["train"])
    expected = []
    for epoch in (1, 2):
        for batch in epoch_order(101, epoch, trainer.contract).view(4, 32):
            x = scale(x_all[batch])
            z = model.encode(x)
            Q = model.quantizer.projection(model.quantizer.coefficients)
            index = torch.cdist(z.double(), Q.double()).argmin(1)
            q = Q[index]
            out = z + (q - z).detach()
            x_hat = model.decoder(out.view(32, 8, 8, -1).permute(0, 3, 1, 2))
            loss = F.mse_loss(x_hat, x) + F.mse_loss(q, z.detach()) + 0.7 * F.mse_loss(z, q.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    _, progress, ended = train(trainer)
    assert ended is None
    np.testing.assert_allclose(progress.columns()["loss"], expected, rtol=2e-4)


def test_log_rows_add_up(make):
    trainer = make()
    columns = train(trainer)[1].columns()
    total = columns["reconstruction_loss"] + columns["codebook_loss"] + 0.25 * columns["commitment_loss"]
    np.testing.assert_allclose(columns["loss"], total, rtol=1e-5)
    np.testing.assert_allclose(columns["codebook_loss"], columns["commitment_loss"], rtol=1e-6)
    norms = {
        part: torch.cat([p.grad.flatten() for p in tensors]).norm().item()
        for part, tensors in trainer.groups.items()
        if tensors
    }
    for part, norm in norms.items():
        assert columns[f"{part}_gradient_norm"][-1] == pytest.approx(norm, rel=1e-5)
    assert not columns["coefficients_gradient_norm"].any()
    assert (columns["latent_power"] > 0).all()


def test_order_is_a_function_of_seed_and_epoch(tiny):
    # pytorch#5059: workers shuffle alike, a resumed run replays the first epoch
    orders = {(seed, epoch): tuple(epoch_order(seed, epoch, tiny).tolist()) for seed in (101, 102) for epoch in (1, 2)}
    torch.manual_seed(5)
    assert tuple(epoch_order(101, 2, tiny).tolist()) == orders[101, 2]
    assert len(set(orders.values())) == 4
    assert all(sorted(order) == list(range(128)) for order in orders.values())


def test_steps_are_counted_once(make):
    # Lightning#17958; the design's 8,192 images at batch 128 are checked beside the contract
    _, progress, _ = train(make(projection_lr_multiplier=10.0, trainability="both"))
    assert (progress.steps, progress.applied) == (8, 8)
    spec = contract_spec("cifar10-v1")
    assert Contract(spec).steps_per_epoch == 64


@pytest.mark.parametrize(
    ("trainability", "frozen"),
    [
        ("basis", {"quantizer.coefficients"}),
        ("coefficients", {"quantizer.projection.weight", "quantizer.projection.bias"}),
        ("both", set()),
        ("none", {"quantizer.coefficients", "quantizer.projection.weight", "quantizer.projection.bias"}),
    ],
)
def test_trainability_is_exact(make, trainability, frozen):
    trainer = make(trainability=trainability)
    held = {id(p) for group in trainer.optimizer.groups for p in group.tensors}
    seen, _, ended = train(trainer, (0, 2))
    assert ended is None
    (_, before), (_, after) = seen[0], seen[2]
    assert {name for name in before if np.array_equal(before[name], after[name])} == frozen
    assert all((id(p) in held) == (name not in frozen) for name, p in trainer.model.named_parameters())


def test_a_frozen_tensor_that_moves_ends_the_run(make):
    trainer = make()
    trainer.optimizer.groups.append(Group(tensors=[trainer.model.quantizer.coefficients], rate=1e-3))
    trainer.model.quantizer.coefficients.grad = torch.ones_like(trainer.model.quantizer.coefficients)
    _, progress, ended = train(trainer)
    assert (ended.state, progress.steps) == ("invalid", 1)
    assert "coefficients is frozen" in ended.reason


def test_a_trainable_tensor_that_does_not_move_ends_the_run(make):
    # jax-vqvae-gpt#2: the codebook never learns while reconstruction improves
    trainer = make()
    trainer.optimizer.groups[1].rate = 0.0
    _, progress, ended = train(trainer)
    assert (ended.state, progress.steps, progress.marks) == ("invalid", 1, [0])
    assert "projection.weight is trainable" in ended.reason


@pytest.mark.parametrize("at", [1, 6])
def test_the_first_nonfinite_step_is_named(make, at):
    # vector-quantize-pytorch#174, SimVQ#6
    trainer = make()
    step, count = trainer.step, [0]

    def poisoned():
        count[0] += 1
        if count[0] == at:
            with torch.no_grad():
                trainer.model.decoder.up2.bias[0] = float("nan")
        step()

    trainer.step = trainer.advance = poisoned
    seen, progress, ended = train(trainer)
    assert (ended.state, progress.steps) == ("nonfinite", at)
    assert ended.reason == f"loss at step {at}"
    assert sorted(seen) == ([0] if at <= 4 else [0, 1])
    assert np.isfinite(progress.columns()["loss"][:-1]).all()


def test_steps_that_the_optimizer_did_not_take_are_seen(make):
    # pytorch#67590: a scaler skips steps silently
    trainer = make()
    take, count = trainer.optimizer.step, [0]

    def skipping():
        count[0] += 1
        if count[0] != 3:
            take()

    trainer.optimizer.step = skipping
    _, progress, ended = train(trainer)
    assert (ended.state, progress.steps, progress.applied) == ("invalid", 4, 3)


def test_warm_up_is_linear_and_then_constant(make):
    trainer = make(projection_warmup_steps=6, projection_lr_multiplier=2.0)
    rates = []
    step = trainer.step

    def watched():
        step()
        rates.append(float(trainer.optimizer.groups[1].rate))

    trainer.step = trainer.advance = watched
    _, _, ended = train(trainer)
    assert ended is None
    full = 2.0 * trainer.contract.training["learning_rate"]
    np.testing.assert_allclose(rates, [full * min(1, (i + 1) / 6) for i in range(8)], rtol=1e-6)


def test_dead_codes_restart_and_survive_the_step(make):
    trainer = make(trainability="coefficients", basis_init="identity", dead_code_restart=3)
    trainer.epoch(1)
    dead = (trainer.usage < 3).nonzero().squeeze(1)
    assert 0 < len(dead) < trainer.contract.codes
    assert trainer.usage.sum() == 4 * 32 * 64
    before = trainer.model.quantizer.coefficients.detach().clone()
    trainer._restart_dead_codes(2)
    after = trainer.model.quantizer.coefficients.detach().clone()
    moved = (before != after).any(1).nonzero().squeeze(1)
    assert torch.equal(moved, dead)
    assert not any(moment[dead].any() for moment in trainer.optimizer.moments(trainer.model.quantizer.coefficients))
    again = make(trainability="coefficients", basis_init="identity", dead_code_restart=3)
    again.epoch(1)
    again._restart_dead_codes(2)
    assert torch.equal(again.model.quantizer.coefficients, trainer.model.quantizer.coefficients)
    trainer.order.copy_(epoch_order(101, 2, trainer.contract).view_as(trainer.order))
    trainer.position.zero_()
    trainer.step()
    moved = (trainer.model.quantizer.coefficients[dead] - after[dead]).abs().max()
    assert moved <= 1.001 * trainer.contract.training["learning_rate"]  # no stale momentum throws a restarted code away


def test_data_initialization_starts_at_latents(make):
    one, two = (make(coefficient_init="data", basis_init="identity") for _ in range(2))
    assert torch.equal(one.model.quantizer.coefficients, two.model.quantizer.coefficients)
    with torch.no_grad():
        latents = one.model.encode(scale(one.train_images))
        distance = torch.cdist(one.model.quantizer.codebook().double(), latents.double()).min(1).values
    assert distance.max() < 1e-5


def test_state_has_the_declared_layout(make, tiny):
    layout = {name: (str(array.dtype), array.shape) for name, array in make().state().items()}
    assert layout == state_layout(tiny)


def test_pixels_survive_the_round_trip():
    pixels = torch.arange(256, dtype=torch.uint8).repeat(12).view(1, 32, 32, 3)
    assert torch.equal(to_uint8(scale(pixels)), pixels)
    assert scale(pixels).min() == -1
    assert scale(pixels).max() == 1
    assert to_uint8(torch.full((1, 3, 2, 2), 9.0)).unique().tolist() == [255]


def test_columns_match_the_log(make):
    trainer = make()
    rows = trainer.epoch(1)
    assert rows.shape == (4, len(STEP_COLUMNS))


def test_a_captured_step_is_made_once_after_the_first_step(tiny, images):
    """The seam of the CUDA graph, with a stand-in that replays by calling."""
    made = []

    def capture(step):
        made.append(trainer.applied())
        return step

    trainer = Trainer(tiny, tiny.baseline, 101, "cpu", images, capture)
    captured, _, _ = train(trainer)
    eager, _, _ = train(Trainer(tiny, tiny.baseline, 101, "cpu", images))
    assert made == [1]
    assert digest(*captured[2]) == digest(*eager[2])

"""Training: one trajectory through every mark.

The whole step (gather, forward, backward, optimizer, log row) reads its position from a counter on the device, so
that the same function runs eagerly on a CPU and is captured once and replayed as a graph on CUDA. Nothing is copied
between host and device inside an epoch; losses and gradient norms are read back once an epoch.
"""

import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from vqkit.formats import knobs as registry
from vqkit.formats.run import STEP_COLUMNS, index_dtype
from vqkit.nn.adam import Adam, Group
from vqkit.nn.autoencoder import Autoencoder, seeded
from vqkit.nn.quantizer import code_counts

EVALUATION_BATCH = 256
PARTS = ("encoder", "decoder", "coefficients", "basis")


class Ended(Exception):
    """The run ends before its last mark. ``state`` is one of ``run.STATES``."""

    def __init__(self, state, reason):
        super().__init__(reason)
        self.state, self.reason = state, reason


@dataclass
class Progress:
    """What has happened so far.

    ``rows`` of the step log, one array for each epoch; ``applied`` optimizer steps by the optimizer's own count;
    ``seconds`` spent in epochs; ``marks`` that have been measured.
    """

    rows: list = field(default_factory=list)
    applied: int = 0
    seconds: float = 0.0
    marks: list = field(default_factory=list)

    @property
    def steps(self):
        """Steps taken, the failing one included."""
        return sum(len(rows) for rows in self.rows)

    def columns(self):
        """The step log as ``run.steps_layout`` wants it: column name → float32 [steps]."""
        table = np.concatenate(self.rows) if self.rows else np.zeros((0, len(STEP_COLUMNS)), np.float32)
        return {name: table[:, i] for i, name in enumerate(STEP_COLUMNS)}


class CapturedStep:
    """A step captured once in a CUDA graph; a call replays it. Capturing records the work and executes nothing."""

    def __init__(self, step):
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()

    def __call__(self):
        self.graph.replay()


class Trainer:
    """A model, its data on the device, and the step that advances both.

    Args:
        contract: a ``Contract``.
        knobs: the effective knobs.
        seed: of the run.
        device: ``cpu`` or ``cuda``.
        images: split → uint8 [N, 32, 32, 3], the contract's selection.
        capture: what turns ``step`` into its replay; None runs it eagerly, which is the same to the bit.
    """

    def __init__(self, contract, knobs, seed, device, images, capture=None):
        self.contract, self.knobs, self.seed, self.device = contract, knobs, seed, torch.device(device)
        self.train_images = torch.tensor(images["train"], device=self.device)
        self.evaluation_images = torch.tensor(images["evaluation"], device=self.device)
        model = Autoencoder(
            codes=contract.codes, latent_dim=contract.latent_dim, hidden=contract.hidden, knobs=knobs, seed=seed
        )
        self.model = model.to(self.device, memory_format=torch.channels_last)
        if knobs["coefficient_init"] == "data":
            self._set_coefficients(torch.arange(contract.codes, device=self.device), epoch=0)
        self._name_tensors()
        self.optimizer = self._build_optimizer()
        steps = contract.steps_per_epoch
        self.order = torch.zeros(steps, contract.training["batch_size"], dtype=torch.int64, device=self.device)
        self.log = torch.zeros(steps, len(STEP_COLUMNS), device=self.device)
        self.rows = torch.arange(steps, device=self.device).unsqueeze(1)  # of the log
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)  # step within the epoch
        self.total = torch.zeros((), device=self.device)  # steps since the start, for the warm-up
        self.usage = torch.zeros(contract.codes, device=self.device)
        self.capture, self.advance = capture, None if capture else self.step

    def epoch(self, number):
        """Train epoch ``number`` (from 1); returns the log rows, float32 [steps, columns].

        Raises:
            Ended: ``invalid`` when the first step left a trainable tensor or moved a frozen one; the log's first row is
                that step.
        """
        self._restart_dead_codes(number)
        self.order.copy_(epoch_order(self.seed, number, self.contract).view_as(self.order))
        self.position.zero_()
        self.usage.zero_()
        first = number == 1
        if first:
            self._checked_first_step()
        if self.advance is None:
            self.advance = self.capture(self.step)
        for _ in range(self.contract.steps_per_epoch - first):
            self.advance()
        return self.log.cpu().numpy().copy()

    def applied(self):
        """How many steps the optimizer itself says it took."""
        return int(self.optimizer.steps)

    @torch.no_grad()
    def measure(self):
        """Evidence of the evaluation split: indices [N, 8, 8] and reconstruction uint8 [N, 32, 32, 3]."""
        indices, reconstructions = [], []
        for batch in self.evaluation_images.split(EVALUATION_BATCH):
            output = self.model(scale(batch))
            side = round((len(output.quantized.indices_N) / len(batch)) ** 0.5)
            indices.append(output.quantized.indices_N.view(len(batch), side, side))
            reconstructions.append(to_uint8(output.reconstruction_NCHW))
        return {
            "indices": torch.cat(indices).cpu().numpy().astype(index_dtype(self.contract)),
            "reconstruction": torch.cat(reconstructions).cpu().numpy(),
        }

    def state(self):
        """The weights, name → float32 array, contiguous in torch's own axis order."""
        return {name: tensor.cpu().contiguous().numpy().copy() for name, tensor in self.model.state_dict().items()}

    def step(self):
        """One optimizer step at ``position``; writes its log row and moves ``position`` on."""
        indices = self.order.index_select(0, self.position).squeeze(0)
        images_NCHW = scale(self.train_images.index_select(0, indices))
        output = self.model(images_NCHW)
        quantized = output.quantized
        reconstruction_loss = mean_squared_error(output.reconstruction_NCHW, images_NCHW)
        loss = (
            reconstruction_loss + quantized.codebook_loss + self.knobs["commitment_weight"] * quantized.commitment_loss
        )
        gradients = torch.autograd.grad(loss, self.trainable)
        for tensor, gradient in zip(self.trainable, gradients, strict=True):
            tensor.grad = gradient
        self._warm_up()
        self.optimizer.step()
        if self.knobs["dead_code_restart"]:
            self.usage += code_counts(quantized.indices_N, self.contract.codes)
        losses = (loss, reconstruction_loss, quantized.codebook_loss, quantized.commitment_loss, quantized.power)
        norms = torch.stack(torch._foreach_norm(gradients))
        row = torch.cat([torch.stack([value.detach() for value in losses]), (self.membership @ norms.square()).sqrt()])
        torch.where(self.rows == self.position, row, self.log, out=self.log)  # a copy by index would sort, on CUDA
        self.position += 1

    def _name_tensors(self):
        quantizer = self.model.quantizer
        groups = {
            "encoder": list(self.model.encoder.parameters()),
            "decoder": list(self.model.decoder.parameters()),
            "coefficients": [quantizer.coefficients],
            "basis": list(quantizer.projection.parameters()),
        }
        self.groups = {part: [tensor for tensor in groups[part] if tensor.requires_grad] for part in PARTS}
        self.trainable = [tensor for part in PARTS for tensor in self.groups[part]]
        self.membership = torch.tensor(
            [[float(part == other) for other in PARTS for _ in self.groups[other]] for part in PARTS],
            device=self.device,
        )

    def _build_optimizer(self):
        training = self.contract.training
        rate = training["learning_rate"]
        self.basis_rate = rate * self.knobs["projection_lr_multiplier"]
        others = [tensor for part in PARTS if part != "basis" for tensor in self.groups[part]]
        groups = [Group(tensors=others, rate=rate)]
        if self.groups["basis"]:
            warm = self.knobs["projection_warmup_steps"] > 0
            basis_rate = torch.tensor(self.basis_rate, device=self.device) if warm else self.basis_rate
            groups.append(Group(tensors=self.groups["basis"], rate=basis_rate))
        return Adam(groups, betas=training["betas"], epsilon=training["epsilon"])

    def _warm_up(self):
        """Set the projection's learning rate: linear over the warm-up, at its value from the last warm-up step on."""
        steps = self.knobs["projection_warmup_steps"]
        if steps and self.groups["basis"]:
            self.total += 1
            self.optimizer.groups[1].rate.copy_((self.total / steps).clamp(max=1) * self.basis_rate)

    def _checked_first_step(self):
        """The first step, and proof that it moved every trainable tensor and no frozen one.

        On CUDA it loads, too, what is loaded on first use and cannot be during a capture.
        """
        before = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}
        self.step()
        if not torch.isfinite(self.log[0]).all():
            return
        for name, tensor in self.model.named_parameters():
            moved = not torch.equal(before[name], tensor)
            if tensor.requires_grad and not (moved and tensor.grad.count_nonzero()):
                raise Ended("invalid", f"{name} is trainable and did not move in step 1")
            if not tensor.requires_grad and moved:
                raise Ended("invalid", f"{name} is frozen and moved in step 1")

    @torch.no_grad()
    def _restart_dead_codes(self, epoch):
        """Put codes that the last epoch used too rarely at latents of training images; forget their moments."""
        minimum = self.knobs["dead_code_restart"]
        if not minimum or epoch == 1 or not registry.coefficients_train(self.knobs):
            return
        dead = (self.usage < minimum).nonzero().squeeze(1)
        if len(dead):
            self._set_coefficients(dead, epoch)
            for moment in self.optimizer.moments(self.model.quantizer.coefficients):
                moment[dead] = 0

    @torch.no_grad()
    def _set_coefficients(self, codes, epoch):
        """Choose coefficients so that ``codes`` lie at latents drawn from (seed, epoch)."""
        generator = seeded(self.seed, "latents", epoch)
        batch = torch.randperm(len(self.train_images), generator=generator)[: self.contract.training["batch_size"]]
        quantizer = self.model.quantizer
        latents_ND = quantizer.normalize_latents(self.model.encode(scale(self.train_images[batch.to(self.device)])))
        chosen = torch.randint(len(latents_ND), (len(codes),), generator=generator).to(self.device)
        quantizer.coefficients[codes] = quantizer.coefficients_for(latents_ND[chosen])


def run_epochs(trainer, marks, progress, *, on_mark, on_epoch, stop):
    """Train to the last mark and measure at each.

    Args:
        marks: epochs to measure at, ascending.
        progress: a ``Progress`` that is filled as the run goes, so that an ended run keeps what it has.
        on_mark: called with (mark, evidence arrays, weights) as soon as a mark is measured.
        on_epoch: called with (epoch, rows, images per second).
        stop: called before every epoch; may raise ``Ended``.

    Raises:
        Ended: in any other state than ``complete``.
    """
    for epoch in range(max(marks) + 1):
        if epoch:
            stop()
            started = time.perf_counter()
            try:
                rows = trainer.epoch(epoch)
            except Ended:
                progress.rows.append(trainer.log[:1].cpu().numpy())
                raise
            elapsed = max(time.perf_counter() - started, 1e-9)  # whatever the clock does
            finite = np.isfinite(rows).all(axis=1)
            progress.rows.append(rows if finite.all() else rows[: finite.argmin() + 1])
            progress.seconds += elapsed
            progress.applied = min(trainer.applied(), progress.steps)
            if not finite.all():
                column = STEP_COLUMNS[np.isfinite(progress.rows[-1][-1]).argmin()]
                raise Ended("nonfinite", f"{column} at step {progress.steps}")
            if progress.applied != progress.steps:
                raise Ended("invalid", f"the optimizer applied {progress.applied} of {progress.steps} steps")
            on_epoch(epoch, rows, trainer.contract.train_count / elapsed)
        if epoch in marks:
            on_mark(epoch, trainer.measure(), trainer.state())
            progress.marks.append(epoch)


def epoch_order(seed, epoch, contract):
    """The order of training images in an epoch, int64 [count]: a function of (seed, epoch) alone."""
    return torch.randperm(contract.train_count, generator=seeded(seed, "order", epoch))


def scale(images_NHWC):
    """uint8 [N, 32, 32, 3] → float32 [N, 3, 32, 32] in [-1, 1], channels last in memory."""
    return images_NHWC.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def mean_squared_error(reconstruction_NCHW, images_NCHW):
    """Mean over all entries, taken in the order in memory, so that the gradient is channels last too."""
    return F.mse_loss(reconstruction_NCHW.permute(0, 2, 3, 1), images_NCHW.permute(0, 2, 3, 1))


def to_uint8(images_NCHW):
    """Float images about [-1, 1] → uint8 [N, 32, 32, 3], rounded and clamped."""
    return ((images_NCHW + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()

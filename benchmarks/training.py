"""A training step: against the straightforward loop on the same model and data, and against the machine's own limit.

The limit is the float32 rate of a large matrix product. How near it anything can come that is built from torch's
convolutions is measured beside it: the bare convolutions of a step, forward and both gradients, with nothing between.
"""

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import timing
from benchmarks.baseline import Loop
from runner import config, environment
from runner.train import CapturedStep, Trainer
from vqkit.formats import dataset

GEMM = 2048  # a square product of this size runs at the machine's float32 rate


def measure(data, device, threads, repeats, contracts=("quick-v1", "cifar10-v1")):
    """One row for each contract and number of threads; each round trains one epoch of 2,048 images on each side."""
    rows = []
    for name in contracts:
        contract = config.locked_contract(name)
        images = dataset.open_dataset(data, {"train": 2048, "evaluation": 256}).images
        for count in threads:
            rows.append({"contract": name, "threads": count, **_compare(contract, images, device, count, repeats)})
    return rows


def _compare(contract, images, device, threads, repeats):
    environment.pin(device, threads)
    trainer = Trainer(contract, contract.baseline, 101, device, images, CapturedStep if device == "cuda" else None)
    steps = len(images["train"]) // contract.training["batch_size"]
    trainer.step()  # loads what a capture cannot
    advance = trainer.capture(trainer.step) if trainer.capture else trainer.step

    def ours():
        for _ in range(steps):
            trainer.position.zero_()
            advance()

    loop = Loop(contract, images, device)
    convolve = convolutions(contract, device)
    left, right = torch.randn(GEMM, GEMM, device=device), torch.randn(GEMM, GEMM, device=device)
    ways = {
        "vqkit": ours,
        "loop": loop.epoch,
        "convolutions": lambda: [convolve() for _ in range(steps)],
        "gemm": lambda: left @ right,
    }
    seconds = timing.rounds(ways, repeats, device)
    work = steps * step_flops(loop, contract, device) / (2 * GEMM**3)
    images_per_second = [len(images["train"]) / one for one in seconds["vqkit"]]
    return {
        "images_per_second": timing.quartiles(images_per_second),
        "loop_over_vqkit": timing.ratios(seconds, "loop", "vqkit"),
        "gemm_gflops": 2 * GEMM**3 / timing.quartiles(seconds["gemm"])[1] / 1e9,
        "share_of_gemm_rate": timing.quartiles([work * one for one in timing.each(seconds, "gemm", "vqkit")]),
        "share_of_convolutions": timing.quartiles([work * one for one in timing.each(seconds, "gemm", "convolutions")]),
    }


def step_flops(loop, contract, device):
    """Floating-point operations of one step, by the plain model's operators: convolutions, projection, distances."""
    batch = contract.training["batch_size"]
    images = torch.zeros(batch, 3, 32, 32, device=device)
    with FlopCounterMode(display=False) as counter:
        reconstruction, _, quantizer_loss = loop.model(images)
        (F.mse_loss(reconstruction, images) + quantizer_loss).backward()
    return counter.get_total_flops() + 2 * batch * 64 * contract.codes * contract.latent_dim


def convolutions(contract, device):
    """A function that runs each convolution of a step and its gradients once, on tensors that are there already."""
    N, h, D = contract.training["batch_size"], contract.hidden, contract.latent_dim
    layers = (  # channels in and out, kernel, stride, side; a transposed one is listed as the convolution it reverses
        (3, h, 4, 2, 32),
        (h, h, 4, 2, 16),
        (h, D, 3, 1, 8),
        (D, h, 3, 1, 8),
        (h, h, 4, 2, 16),
        (3, h, 4, 2, 32),
    )
    ready = []
    for i, (inputs, outputs, kernel, stride, side) in enumerate(layers):
        shapes = (
            (N, inputs, side, side),
            (outputs, inputs, kernel, kernel),
            (N, outputs, side // stride, side // stride),
        )
        tensors = [torch.randn(shape, device=device).to(memory_format=torch.channels_last) for shape in shapes]
        ready.append((*tensors, stride, i > 0))  # the first layer's input gradient is not needed

    def convolve():
        for x, weight, gradient, stride, needs_input in ready:
            F.conv2d(x, weight, None, stride, 1)
            sides = [stride, stride], [1, 1], [1, 1], False, [0, 0], 1
            torch.ops.aten.convolution_backward(gradient, x, weight, None, *sides, [needs_input, True, False])

    return convolve


def table(rows):
    """The rows as Markdown."""
    lines = [
        "| contract | threads | images/s | loop's time / vqkit's | share of the float32 GEMM rate "
        "| bare convolutions' share | GEMM GFLOP/s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['contract']} | {row['threads']} | {row['images_per_second'][1]:,.0f} | "
            f"{timing.spread(row['loop_over_vqkit'])} | {timing.spread(row['share_of_gemm_rate'])} | "
            f"{timing.spread(row['share_of_convolutions'])} | "
            f"{row['gemm_gflops']:,.0f} |"
        )
    return "\n".join(lines)

"""A training step: against the straightforward loop on the same model and data, and against the machine's own limit."""

import torch
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
    with FlopCounterMode(display=False) as counter:
        trainer.step()
    trainer.position.zero_()
    advance = trainer.capture(trainer.step) if trainer.capture else trainer.step

    def ours():
        for _ in range(steps):
            trainer.position.zero_()
            advance()

    loop = Loop(contract, images, device)
    left, right = torch.randn(GEMM, GEMM, device=device), torch.randn(GEMM, GEMM, device=device)
    seconds = timing.rounds({"vqkit": ours, "loop": loop.epoch, "gemm": lambda: left @ right}, repeats, device)
    work = steps * counter.get_total_flops() / (2 * GEMM**3)
    limit = [work * product / own for own, product in zip(seconds["vqkit"], seconds["gemm"], strict=True)]
    images_per_second = [len(images["train"]) / one for one in seconds["vqkit"]]
    return {
        "images_per_second": timing.quartiles(images_per_second),
        "loop_over_vqkit": timing.ratios(seconds, "loop", "vqkit"),
        "gemm_gflops": 2 * GEMM**3 / timing.quartiles(seconds["gemm"])[1] / 1e9,
        "share_of_gemm_rate": timing.quartiles(limit),
    }


def table(rows):
    """The rows as Markdown."""
    lines = [
        "| contract | threads | images/s | loop's time / vqkit's | share of the float32 GEMM rate | GEMM GFLOP/s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['contract']} | {row['threads']} | {row['images_per_second'][1]:,.0f} | "
            f"{timing.spread(row['loop_over_vqkit'])} | {timing.spread(row['share_of_gemm_rate'])} | "
            f"{row['gemm_gflops']:,.0f} |"
        )
    return "\n".join(lines)

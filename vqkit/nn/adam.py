"""Adam by torch's fused kernel alone: ``torch.optim`` would load a compiler around it, a thousand modules."""

from dataclasses import dataclass, field

import torch


@dataclass(kw_only=True)
class Group:
    """Tensors with a learning rate of their own: a number, or a scalar tensor that may change between steps.

    ``means`` and ``squares`` are the moving averages of gradients and of their squares.
    """

    tensors: list
    rate: object
    means: list = field(init=False)
    squares: list = field(init=False)

    def __post_init__(self):
        self.means = [torch.zeros_like(tensor) for tensor in self.tensors]
        self.squares = [torch.zeros_like(tensor) for tensor in self.tensors]


class Adam:
    """Adam (Kingma & Ba 2014, arXiv:1412.6980, algorithm 1) without weight decay.

    Args:
        groups: a list of ``Group``.
        betas: decay rates of the two moving averages.
        epsilon: added to the root of the second.
    """

    def __init__(self, groups, *, betas, epsilon):
        self.groups, self.betas, self.epsilon = groups, betas, epsilon
        self.steps = torch.zeros((), device=groups[0].tensors[0].device)  # taken so far

    @torch.no_grad()
    def step(self):
        """Move every tensor against its ``grad``."""
        self.steps += 1
        for group in self.groups:
            torch._fused_adam_(
                group.tensors,
                [laid_out_as(tensor, tensor.grad) for tensor in group.tensors],
                group.means,
                group.squares,
                [],
                [self.steps] * len(group.tensors),
                lr=group.rate,
                beta1=self.betas[0],
                beta2=self.betas[1],
                eps=self.epsilon,
                weight_decay=0.0,
                amsgrad=False,
                maximize=False,
            )

    def moments(self, tensor):
        """The two moving averages of a tensor."""
        for group in self.groups:
            for known, *moments in zip(group.tensors, group.means, group.squares, strict=True):
                if known is tensor:
                    return moments
        raise KeyError("a tensor of the optimizer")


def laid_out_as(tensor, gradient):
    """``gradient`` with the strides of ``tensor``: the kernel walks both in memory order, unchecked."""
    return gradient if gradient.stride() == tensor.stride() else torch.empty_like(tensor).copy_(gradient)

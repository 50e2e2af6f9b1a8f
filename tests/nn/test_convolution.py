"""The autoencoder's convolutions against torch's own operators and against their gradients in float64."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from vqkit.nn.convolution import Convolution, Upsample


def assert_equal_to(ours, theirs, size):
    """Values and all gradients, ours channels last and theirs as torch computes them from contiguous tensors."""
    theirs[-1].load_state_dict(ours.state_dict())
    x = torch.randn(2, ours.in_channels, *size)
    a, b = x.to(memory_format=torch.channels_last).requires_grad_(), x.clone().requires_grad_()
    one, two = ours.to(memory_format=torch.channels_last)(a), theirs(b)
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    gradient = torch.randn_like(two)
    found = torch.autograd.grad(one, [a, *ours.parameters()], gradient)
    expected = torch.autograd.grad(two, [b, *theirs.parameters()], gradient)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)


def gradients_are_right(module, size):
    """Against finite differences, in float64."""
    module = module.double()
    x = torch.randn(1, module.in_channels, *size, dtype=torch.float64, requires_grad=True)

    def run(x, weight, bias):
        return torch.func.functional_call(module, {"weight": weight, "bias": bias}, x.clone())

    return gradcheck(run, (x, *module.parameters()))


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize(("channels", "kernel", "stride"), [((3, 8), 4, 2), ((5, 3), 3, 1), ((32, 16), 3, 1)])
def test_convolution_equals_torch(channels, kernel, stride, rectify):
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.ReLU() if rectify else nn.Identity(), nn.Conv2d(*channels, kernel, stride, padding=1))
    assert_equal_to(Convolution(*channels, kernel, stride, rectify), theirs, (6, 8))


@pytest.mark.parametrize(
    ("channels", "size"), [((5, 3), (4, 4)), ((3, 8), (3, 3)), ((4, 9), (5, 5)), ((32, 32), (8, 8)), ((16, 3), (6, 4))]
)
def test_upsample_equals_torch(channels, size):
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(*channels, 4, stride=2, padding=1))
    assert_equal_to(Upsample(*channels), theirs, size)


@pytest.mark.parametrize(
    "module", [Convolution(2, 3, 4, 2), Convolution(2, 3, 3, rectify=True), Upsample(2, 3), Upsample(2, 9)]
)
def test_gradients_in_float64(module):
    torch.manual_seed(1)
    assert gradients_are_right(module, (4, 2))

"""The transposed convolution against torch's own operator and against its gradients in float64."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from vqkit.nn.upsample import Upsample


@pytest.mark.parametrize(
    ("channels", "size"), [((5, 3), 4), ((3, 8), 3), ((4, 9), 5), ((32, 32), 8), ((16, 3), (6, 4))]
)
def test_equals_torch(channels, size):
    torch.manual_seed(0)
    ours = Upsample(*channels).to(memory_format=torch.channels_last)
    theirs = nn.ConvTranspose2d(*channels, 4, stride=2, padding=1)
    theirs.load_state_dict(ours.state_dict())
    height, width = (size, size) if isinstance(size, int) else size
    x = torch.randn(2, channels[0], height, width)
    a, b = x.to(memory_format=torch.channels_last).requires_grad_(), x.clone().requires_grad_()
    one, two = ours(a), theirs(b)
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    gradient = torch.randn_like(two)
    found = torch.autograd.grad(one, [a, *ours.parameters()], gradient)
    expected = torch.autograd.grad(two, [b, *theirs.parameters()], gradient)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("channels", [(2, 3), (2, 9)])
def test_gradients_are_right_in_float64(channels):
    torch.manual_seed(1)
    ours = Upsample(*channels).double()
    x = torch.randn(1, channels[0], 3, 2, dtype=torch.float64, requires_grad=True)

    def run(x, weight, bias):
        return torch.func.functional_call(ours, {"weight": weight, "bias": bias}, x)

    assert gradcheck(run, (x, *ours.parameters()))

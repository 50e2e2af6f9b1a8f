"""Adam against torch's own optimizers, and the layout of gradients in memory."""

import pytest
import torch

from vqkit.nn.adam import Adam, Group, laid_out_as

SETTINGS = {"betas": (0.9, 0.99), "eps": 1e-7}


def tensors(seed=0, dtype=torch.float32):
    """A convolution's weight, channels last, a bias and a matrix."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((8, 6, 4, 4), (8,), (5, 7))
    made = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    made[0] = made[0].contiguous(memory_format=torch.channels_last)
    return made


def trained(optimizer, held, steps=7):
    """``held`` after steps along gradients that are contiguous whatever their tensor is."""
    for step in range(steps):
        for tensor, gradient in zip(held, tensors(seed=step + 1, dtype=held[0].dtype), strict=True):
            tensor.grad = gradient.contiguous()
        optimizer.step()
    return held


@pytest.fixture
def ours():
    held = tensors()
    rate = torch.tensor(0.3)
    groups = [Group(tensors=held[:2], rate=1e-2), Group(tensors=held[2:], rate=rate)]
    return held, Adam(groups, betas=SETTINGS["betas"], epsilon=SETTINGS["eps"])


def test_the_same_bits_as_torch_fused(ours):
    held, optimizer = ours
    theirs = tensors()
    groups = [{"params": theirs[:2], "lr": 1e-2}, {"params": theirs[2:], "lr": torch.tensor(0.3)}]
    fused = torch.optim.Adam(groups, fused=True, **SETTINGS)
    for tensor, gradient in zip(theirs, tensors(seed=1), strict=True):
        tensor.grad = gradient  # laid out as its tensor is: torch does not look
    fused.step()
    assert all(map(torch.equal, trained(optimizer, held, steps=1), theirs))


def test_the_same_values_as_torch_in_float64(ours):
    held, optimizer = ours
    theirs = tensors(dtype=torch.float64)
    theirs = [tensor.copy_(other) for tensor, other in zip(theirs, held, strict=True)]
    groups = [{"params": theirs[:2], "lr": 1e-2}, {"params": theirs[2:], "lr": 0.3}]
    plain = torch.optim.Adam(groups, foreach=False, fused=False, **SETTINGS)
    for step in range(7):
        for tensor, gradient in zip(theirs, tensors(seed=step + 1), strict=True):
            tensor.grad = gradient.double()
        plain.step()
    for one, two in zip(trained(optimizer, held), theirs, strict=True):
        torch.testing.assert_close(one, two.float(), rtol=1e-5, atol=1e-5)
    assert optimizer.steps == 7


def test_gradients_are_laid_out_as_their_tensors():
    """The kernel pairs numbers by their place in memory: a gradient of other strides would be applied scrambled."""
    tensor = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    gradient = torch.randn(2, 3, 4, 4)
    laid = laid_out_as(tensor, gradient)
    assert laid.stride() == tensor.stride()
    assert torch.equal(laid, gradient)
    assert laid_out_as(gradient, gradient) is gradient


def test_the_moments_of_a_tensor(ours):
    held, optimizer = ours
    trained(optimizer, held, steps=1)
    mean, square = optimizer.moments(held[1])
    gradient = tensors(seed=1)[1]
    torch.testing.assert_close(mean, gradient * (1 - 0.9))
    torch.testing.assert_close(square, gradient.square() * (1 - 0.99))
    with pytest.raises(KeyError):
        optimizer.moments(torch.zeros(1))

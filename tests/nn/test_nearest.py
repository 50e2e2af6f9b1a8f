"""Nearest-code search against float64 and exact brute force, faiss, other tile sizes, and Triton's interpreter."""

import json
import os
import subprocess
import sys
from fractions import Fraction

import faiss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from runner import environment
from vqkit.errors import InternalError
from vqkit.nn import nearest
from vqkit.nn.nearest import nearest_codes, nearest_codes_float64, nearest_codes_tiled

CPU_WAYS = pytest.mark.parametrize("search", [nearest_codes, nearest_codes_float64])


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def brute_force(latents, codes):
    """The first index of the least Σ(z−c)² in float64, latent by latent."""
    return torch.stack([(z - codes.double()).square().sum(1).argmin() for z in latents.double()])


def two_clusters(count, D, distance, seed):
    """Points around +distance and −distance: no common centre serves both."""
    return random(count, D, seed=seed) + distance * random(count, 1, seed=seed + 1).sign()


@CPU_WAYS
@pytest.mark.parametrize("offset", [0, 1e3, 1e4])
@pytest.mark.parametrize(
    ("N", "K", "D"), [(5, 1, 3), (9, 2, 1), (50, 3, 7), (700, 128, 64), (300, 100, 33), (200, 2049, 8), (150, 5000, 16)]
)
def test_equals_float64_brute_force(search, N, K, D, offset):
    latents, codes = random(N, D) + offset, random(K, D, seed=1) + offset
    assert torch.equal(search(latents, codes), brute_force(latents, codes))


@CPU_WAYS
def test_huge_latents_and_one_stray_code(search):
    latents, codes = random(400, 16), random(300, 16, seed=1)
    latents[::7] *= 1e6
    codes[17] = 1e9
    assert torch.equal(search(latents, codes), brute_force(latents, codes))


def test_two_far_clusters():
    latents, codes = two_clusters(400, 16, 1e4, seed=0), two_clusters(3000, 16, 1e4, seed=2)
    assert torch.equal(nearest_codes(latents, codes), brute_force(latents, codes))


def test_the_error_bound_is_what_makes_it_exact(monkeypatch):
    """Without the bound no row is doubtful, and float32 scores alone choose wrong codes."""
    latents, codes = two_clusters(400, 16, 1e4, seed=0), two_clusters(3000, 16, 1e4, seed=2)
    monkeypatch.setattr(nearest, "relative_slack", lambda codes: 0.0)
    assert (nearest_codes(latents, codes) != brute_force(latents, codes)).any()


@CPU_WAYS
def test_equal_rows_give_the_lowest_index_across_groups_and_tiles(search):
    codes = random(5003, 24)
    equal = [7, 8, 71, 2047, 2048, 4100, 5002]  # neighbours, another group, both sides of a tile border, the tail
    codes[equal] = codes[7].clone()
    latents = codes[7] + 0.01 * random(300, 24, seed=1)
    assert search(latents, codes).unique().tolist() == [7]
    assert search(latents, codes[8:]).unique().tolist() == [0]


@CPU_WAYS
def test_ties_of_different_codes(search):
    """On a grid many codes are exactly as near as each other; also z = 0 between −1 and 1."""
    generator = torch.Generator().manual_seed(0)
    latents = torch.randint(-4, 5, (400, 4), generator=generator) / 2
    codes = torch.randint(-2, 3, (2500, 4), generator=generator).float()
    assert torch.equal(search(latents, codes), brute_force(latents, codes))
    assert search(torch.zeros(1, 1), torch.tensor([[1.0], [-1.0]])).tolist() == [0]


@CPU_WAYS
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_beyond_float32(search, scale):
    """Squared distances of 1e-60 vanish in float32, those of 1e60 overflow."""
    latents, codes = scale * random(90, 8), scale * random(300, 8, seed=1)
    assert torch.equal(search(latents, codes), brute_force(latents / scale, codes / scale))


@CPU_WAYS
def test_a_collapsed_codebook(search):
    assert search(random(600, 8), random(1, 8, seed=1).expand(300, 8)).unique().tolist() == [0]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_finite_numbers_against_exact_arithmetic(data):
    """Subnormal, huge and equal numbers: never farther than float64 rounding, never above an exactly nearest index."""
    N, K, D = (data.draw(st.integers(1, most)) for most in (3, 9, 3))
    number = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1.0, -1.0, 1e-30, 3e38])
    latents, codes = (
        data.draw(st.lists(st.lists(number, min_size=D, max_size=D), min_size=n, max_size=n)) for n in (N, K)
    )
    for search in (nearest_codes, nearest_codes_tiled):
        found = search(torch.tensor(latents), torch.tensor(codes)).tolist()
        for z, index in zip(latents, found, strict=True):
            distances = [sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(z, c, strict=True)) for c in codes]
            assert distances[index] <= min(distances) * (1 + Fraction(1, 10**13))
            assert index <= distances.index(min(distances))


@pytest.mark.parametrize("sizes", [(4, 256, 16), (64, 128, 3), (512, 2**12, 100), (2**14, 2**22, 5000)])
def test_does_not_depend_on_tile_sizes_or_threads(monkeypatch, sizes):
    latents, codes = random(90, 20), random(700, 20, seed=1)
    codes[400:500] = codes[:100].clone()
    expected = nearest_codes(latents, codes)
    for name, size in zip(("CODES_PER_TILE", "SCORES_PER_TILE", "ROWS_PER_TILE"), sizes, strict=True):
        monkeypatch.setattr(nearest, name, size)
    monkeypatch.setattr(nearest, "DOUBTS_AT_ONCE", sizes[0])
    monkeypatch.setattr(nearest, "SETTLED_AT_ONCE", sizes[1])
    torch.set_num_threads(2)
    assert torch.equal(nearest_codes(latents, codes), expected)
    assert torch.equal(nearest_codes_float64(latents, codes), expected)


def test_agrees_with_faiss():
    latents, codes = random(500, 32), random(3000, 32, seed=1)
    index = faiss.IndexFlatL2(32)
    index.add(codes.numpy())
    found = torch.from_numpy(index.search(latents.numpy(), 1)[1][:, 0])
    ours = nearest_codes(latents, codes)
    gap = (latents - codes[found]).square().sum(1) - (latents - codes[ours]).square().sum(1)
    assert (found == ours).float().mean() > 0.999
    assert gap.min() > -1e-4


@CPU_WAYS
def test_float32_under_autocast_and_for_other_types(search):
    latents, codes = random(300, 32) + 100, random(128, 32, seed=1) + 100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(nearest_codes(latents, codes), brute_force(latents, codes))
    half = latents.bfloat16()
    assert torch.equal(nearest_codes(half, codes), brute_force(half.float(), codes))


@CPU_WAYS
def test_layout_gradient_and_inputs(search):
    wide, tall = random(32, 2, 300), random(32, 128, seed=1)
    latents, codes = wide[:, 1].t().requires_grad_(), tall.t().requires_grad_()
    before = wide.clone(), tall.clone()
    index = nearest_codes(latents, codes)
    assert torch.equal(index, brute_force(latents.detach(), codes.detach()))
    assert (index.dtype, index.shape, index.requires_grad) == (torch.int64, (300,), False)
    assert torch.equal(wide, before[0])
    assert torch.equal(tall, before[1])


def test_no_latents_and_wrong_shapes():
    assert nearest_codes(torch.zeros(0, 3), torch.zeros(2, 3)).shape == (0,)
    for latents, codes in (((4, 3), (2, 4)), ((4, 3), (0, 3)), ((4, 0), (2, 0)), ((4,), (2, 4)), ((2, 4, 3), (2, 3))):
        with pytest.raises(InternalError) as raised:
            nearest_codes(torch.zeros(latents), torch.zeros(codes))
        assert raised.value.codes == ("E_INTERNAL",)


@CPU_WAYS
def test_non_finite_latents_get_code_0_and_non_finite_codes_none(search):
    latents, codes = random(200, 5), random(40, 5, seed=1)
    expected = brute_force(latents, codes)
    latents[3, 1], latents[5], latents[8, 0] = torch.nan, torch.inf, -torch.inf
    expected[[3, 5, 8]] = 0
    assert torch.equal(search(latents, codes), expected)
    bad = [0, 11, 39]
    codes[0, 2], codes[11, 1], codes[39] = torch.nan, torch.inf, torch.nan
    found = search(latents, codes)
    good = [k for k in range(40) if k not in bad]
    finite = latents.isfinite().all(1)
    assert torch.equal(found[finite], torch.tensor(good)[brute_force(latents[finite], codes[good])])
    assert search(latents, torch.full((40, 5), torch.nan)).unique().tolist() == [0]


def test_memory_stays_bounded():
    """At most 64 MiB over the inputs at K = 262,144, and the answer is right there."""
    script = """
import resource, torch
from vqkit.nn.nearest import nearest_codes
torch.set_num_threads(1)
latents, codes = torch.randn(1024, 64), torch.randn(262144, 64)
nearest_codes(latents[:600], codes[:256])
resident = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
index = nearest_codes(latents, codes)
peak = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
over = peak - resident
rows = range(0, 1024, 300)
right = [int(((latents[i].double() - codes.double()) ** 2).sum(1).argmin()) for i in rows]
print(over / 2**20, right == index[list(rows)].tolist())
"""
    over, right = run_python(script).split()
    assert right == "True"
    assert 0 < float(over) <= 64


def run_python(script, **environment):
    """Standard output of a Python process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


# CUDA: the logic on a CPU, then the device


def test_cuda_kernels_under_the_interpreter():
    """K not a multiple of the block, D = 32, 64 and odd, offsets, ties, clusters, non-finite rows; against float64."""
    pytest.importorskip("triton")
    script = """
import json, warnings, torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from vqkit.nn.nearest import TINY, centre_of, nearest_codes_tiled, relative_slack
from vqkit.nn.nearest_triton import nearest_codes_fused
torch.manual_seed(0)
wrong = {}
def check(name, latents, codes):
    direct = [(z - codes.double()).square().sum(1).nan_to_num(torch.inf, torch.inf).argmin() for z in latents.double()]
    found = nearest_codes_fused(latents, codes, centre_of(codes), relative_slack(codes), TINY[torch.float32])
    wrong[name] = [int((found != torch.stack(direct)).sum()), int((found != nearest_codes_tiled(latents, codes)).sum())]
for N, K, D in [(5, 1, 3), (9, 2, 1), (65, 130, 32), (40, 128, 64), (64, 64, 16), (30, 70, 33), (20, 65, 70)]:
    for offset in (0, 1e4):
        check(f"{N} {K} {D} {offset}", torch.randn(N, D) + offset, torch.randn(K, D) + offset)
check("grid", torch.randint(-4, 5, (40, 4)) / 2, torch.randint(-2, 3, (150, 4)).float())
codes = torch.randn(150, 24)
codes[[7, 8, 63, 64, 128, 149]] = codes[7].clone()
check("equal rows", codes[7] + 0.01 * torch.randn(20, 24), codes)
signs = torch.randn(190, 1).sign()
check("clusters", torch.randn(40, 8) + 1e4 * signs[:40], torch.randn(150, 8) + 1e4 * signs[40:])
latents, codes = torch.randn(70, 5), torch.randn(90, 5)
latents[3, 1], latents[5], codes[0, 2], codes[80] = torch.nan, torch.inf, torch.nan, torch.inf
latents[9], codes[60] = 3e38, 2e38
check("non-finite", latents, codes)
print(json.dumps(wrong))
"""
    wrong = json.loads(run_python(script, TRITON_INTERPRET="1"))
    assert len(wrong) == 18
    assert {name: count for name, count in wrong.items() if count != [0, 0]} == {}


@pytest.mark.parametrize(("capability", "ones"), [(80, ()), (90, ()), (90, ("N", "K", "D"))])
def test_cuda_kernels_compile_without_a_device_and_use_no_tf32(capability, ones):
    """``ones`` are sizes of 1, which Triton makes constants."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    from vqkit.nn import nearest_triton

    types = {"latents": "*fp32", "codes": "*fp32", "index": "*i64", "doubtful": "*i8", "K": "i32", "D": "i32"}
    scan = {**types, "centre": "*fp32", "N": "i32", "slack": "fp32", "tiny": "fp32"}
    for kernel, arguments, options in (
        (nearest_triton.scan, scan, nearest_triton.SCAN_OPTIONS),
        (nearest_triton.settle, {**types, "tolerance": "fp32"}, {}),
    ):
        types = {name: kind for name, kind in arguments.items() if name not in ones}
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        constants = {"WIDTH": 32} | {name: 1 for name in ones if name in kernel.arg_names}
        source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert "fma.rn.f" in compiled.asm["ptx"]
        assert "tf32" not in compiled.asm["ptx"]
        assert compiled.metadata.shared <= 48 * 1024


@pytest.mark.parametrize(("variable", "found"), [("PATH", False), ("CC", True)])
def test_the_kernels_need_a_compiler_and_are_not_used_without(variable, found, monkeypatch, tmp_path):
    nearest_triton = pytest.importorskip("vqkit.nn.nearest_triton")
    if not nearest_triton.launchable():
        pytest.skip("no C compiler or no Python.h")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(variable, str(tmp_path))
    assert nearest_triton.launchable() is found
    assert nearest.fused_search.__wrapped__() is (nearest_triton.nearest_codes_fused if found else None)


def test_the_cuda_fallback_has_no_shape_that_depends_on_values():
    """What a graph can't capture fails on tensors without values, as the CPU search does."""
    with FakeTensorMode():
        latents, codes = torch.empty(700, 8), torch.empty(3000, 8)
        assert nearest_codes_float64(latents, codes).shape == (700,)
        with pytest.raises(DynamicOutputShapeException):
            nearest_codes_tiled(latents, codes)


@pytest.fixture
def cuda():
    """The device, as a run pins it: torch reads the variable for cuBLAS once, before the first product."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    environment.pin("cuda", 1)
    return torch.device("cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("N", "K", "D"), [(8192, 128, 64), (4096, 128, 32), (1000, 5003, 33), (3, 1, 1)])
def test_cuda_equals_the_cpu(cuda, monkeypatch, fused, N, K, D):
    if not fused:
        monkeypatch.setattr(nearest, "fused_search", lambda: None)
    latents, codes = random(N, D) + 1e3, random(K, D, seed=1) + 1e3
    codes[K // 2 :] = codes[: K - K // 2].clone()
    expected = nearest_codes(latents, codes)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(nearest_codes(latents.to(cuda), codes.to(cuda)).cpu(), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("fused", [True, False])
def test_cuda_graph_replays_with_new_values(cuda, monkeypatch, fused):
    if not fused:
        monkeypatch.setattr(nearest, "fused_search", lambda: None)
    latents, codes = random(2048, 64).to(cuda), random(128, 64, seed=1).to(cuda)
    nearest_codes(latents, codes)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        index = nearest_codes(latents, codes)
    codes[64:] = codes[:64].clone()  # every row is doubtful now
    latents.copy_(random(2048, 64, seed=2))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(index.cpu(), nearest_codes(latents.cpu(), codes.cpu()))

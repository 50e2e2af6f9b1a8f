"""Environment variables that numerical libraries read, or by which the linker loads other code: part of the environment
that a plan binds."""

import re

NUMERICAL = re.compile(
    r"^(OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|BLIS_|ATEN_|TORCH_|PYTORCH_|ONEDNN_|DNNL_"
    r"|CUBLAS_|CUBLASLT_|CUDNN_|NVIDIA_|TRITON_|DISABLE_ADDMM_CUDA_LT$|LD_PRELOAD$|LD_AUDIT$|GLIBC_TUNABLES$)"
)
IRRELEVANT = re.compile(
    r"^(TORCH_HOME|TORCH_EXTENSIONS_DIR|TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR|NVIDIA_VISIBLE_DEVICES)$"
)


def numerical(environ):
    """Those of ``environ`` that may change numbers, sorted by name."""
    return {
        name: value for name, value in sorted(environ.items()) if NUMERICAL.match(name) and not IRRELEVANT.match(name)
    }

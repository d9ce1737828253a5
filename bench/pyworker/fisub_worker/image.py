"""The packages of the contest's image.

From the starter kit's EVALUATION.md and the requirements of FlashInfer and flashinfer-bench.
"""

import importlib.metadata

IMAGE = set("""click cuda cudnn cupti cutlass deep_gemm einops flashinfer flashinfer_bench helion ninja numpy packaging pydantic
    pynvml requests safetensors tabulate tilelang tirx torch tqdm triton tvm_ffi""".split())
TRITON = "3.6.0"  # the contest's
# By package: its name on PyPI.
PYPI = {name: name for name in ("einops", "helion", "ninja", "numpy", "safetensors", "tilelang", "tqdm")} | {
        "cuda": "cuda-python", "cudnn": "nvidia-cudnn-frontend", "cupti": "cupti-python", "cutlass": "nvidia-cutlass-dsl",
        "flashinfer": "flashinfer-python", "pynvml": "nvidia-ml-py", "tvm_ffi": "apache-tvm-ffi", "flashinfer_bench": "flashinfer-bench"}


def version(package):
    try:
        return importlib.metadata.version(package)
    except Exception:
        return ""

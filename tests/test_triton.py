"""Triton's kernels: equal to torch's operations in the interpreter, compiled for two GPUs, and never used unasked.

All in processes of their own: whether Triton interprets or compiles is decided once, when it is imported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import losses
from curriculoss import _kernel, soft_margin
from curriculoss.errors import InvalidValueError

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")

# As launched for contiguous logits (N, K), where strides and axis are 1 and K is a multiple of 16.
COMPILE = """
import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from curriculoss import _triton

for capability in (80, 90):
    for logits in ("fp16", "bf16", "fp32", "fp64"):
        wide = "fp64" if logits == "fp64" else "fp32"
        types = {"logits": logits, "out": logits, "index": "i64"}
        types |= dict.fromkeys(("margins", "tops", "totals", "grads"), wide)
        lowest = torch.finfo(torch.float64 if logits == "fp64" else torch.float32).min
        constants = {"lowest": lowest, "rows": 1, "classes": _triton.TILE}
        constants |= dict.fromkeys(("axis", "step_k", "step_d", "out_k", "out_d"), 1)
        for kernel in (_triton.forward_kernel, _triton.backward_kernel):
            names = kernel.arg_names
            pointers = {name: f"*{dtype}" for name, dtype in types.items()}
            signature = {name: pointers.get(name, "constexpr" if name in constants else "i32") for name in names}
            aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants}
            given = {name: value for name, value in constants.items() if name in names}
            source = ASTSource(kernel, signature, given, aligned)
            compiled = compile(source, target=GPUTarget("cuda", capability, 32), options=_triton.OPTIONS)
            assert compiled.asm["cubin"]
            print("----", capability, logits, kernel.__name__, compiled.asm["ptx"], sep="\\n")
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "CURRICULOSS_"))}
    return subprocess.run(
        [sys.executable, *command],
        env={**inherited, **environment},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
@needs_triton
def test_kernels_do_in_the_interpreter_what_torch_does():
    command = ("-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider")
    done = run(*command, "tests/triton_cases.py", TRITON_INTERPRET="1", CURRICULOSS_KERNEL="triton")
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
    assert re.search(r"^\d{3} passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
@needs_triton
def test_kernels_compile_for_gpus_and_load_and_store_16_bytes_at_once(tmp_path):
    done = run("-W", "error", "-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    compiled = [text.split("\n", 3) for text in done.stdout.split("----\n")[1:]]
    assert len(compiled) == 2 * 4 * 2
    for capability, dtype, kernel, ptx in compiled:
        assert f".target sm_{capability}" in ptx
        size = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}[dtype]
        wide = r"\.global\.v2\.b64" if size == 8 else r"\.global\.v4\.b32"
        stores = 0 if kernel == "forward_kernel" else 4096 * size // 16 // 256
        assert len(re.findall("ld" + wide, ptx)) == 4096 * size // 16 // 256  # 256 threads read one tile, once
        assert len(re.findall("st" + wide, ptx)) == stores
        if not stores:  # `top` starts from finfo.min, which must not have become -inf
            assert ("0dFFEFFFFFFFFFFFFF" if dtype == "fp64" else "0fFF7FFFFF") in ptx
        elif dtype == "bf16":
            assert "cvt.rn.bf16" in ptx  # to nearest; the interpreter cannot show it


def test_unknown_kernel_is_refused(monkeypatch):
    monkeypatch.setattr(_kernel, "KERNEL", "cuda")
    with pytest.raises(InvalidValueError, match=r"^CURRICULOSS_KERNEL expects torch or triton, got 'cuda'$"):
        soft_margin(torch.zeros(1, 2), torch.tensor([0]))


def test_missing_triton_is_said_in_one_line_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(_kernel, "KERNEL", "triton")
    monkeypatch.delitem(sys.modules, "curriculoss._triton", raising=False)
    monkeypatch.delattr("curriculoss._triton", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(
        InvalidValueError, match=r"^CURRICULOSS_KERNEL=triton needs triton: pip install 'curriculoss\[gpu"
    ):
        soft_margin(torch.zeros(1, 2), torch.tensor([0]))


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("kernel", "imported"), [("", False), ("triton", True)])
def test_environment_chooses_the_kernel_and_tensors_on_a_cpu_are_left_to_torch(kernel, imported):
    done = run(
        "-c",
        "import sys, torch, curriculoss\n"
        "assert 'curriculoss._triton' not in sys.modules\n"
        "print(curriculoss.soft_margin(torch.tensor([[3.0, 1.0]]), torch.tensor([0])).item())\n"
        "print('curriculoss._triton' in sys.modules)",
        CURRICULOSS_KERNEL=kernel,
    )
    assert done.stdout.split() == ["2.0", str(imported)], done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_benchmark_on_a_gpu_that_is_not_there_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        losses.main(["--device", "cuda"])
    assert capsys.readouterr().err.endswith(f"expects a GPU, and torch {torch.__version__} finds none here\n")

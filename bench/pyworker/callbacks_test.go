package pyworker

import (
	"fmt"
	"testing"
)

const callbackHead = `import threading
import torch
import triton
import triton.language as tl
from concurrent.futures import ThreadPoolExecutor

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 5, mask=i < n)

calls = 0

def on_device(*args, **kwargs):
    global calls
    assert torch.zeros(2, device='cuda').is_cuda and not torch.zeros(2).is_cuda
    calls += 1

def scaled(x: torch.Tensor) -> torch.Tensor:
    on_device()
    assert x.is_cuda
    y = torch.empty(3, device='cuda')
    scale[(1,)](x, y, 3, BLOCK=4)
    return y

def tuned(configs=[triton.Config({'BLOCK': 4}), triton.Config({'BLOCK': 8})], **kwargs):
    return triton.autotune(configs=configs, key=['n'], **kwargs)(scale)

def prune(configs, named_args, **kwargs):
    on_device()
    return configs

def hooked(name, x, y):
    setattr(triton.knobs.runtime, name, on_device)
    try:
        scale[(1,)](x, y, 3, BLOCK=4)
    finally:
        setattr(triton.knobs.runtime, name, None)

def in_thread(f):
    t = threading.Thread(target=f)
    t.start()
    t.join()

def in_pool(f, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(f, *args).result()

def operator(key, f=scaled, before=None):
    lib = torch.library.Library(f'fisub_{before}_{key}', 'FRAGMENT')
    lib.define('f(Tensor x) -> Tensor')
    if before:
        lib.impl('f', lambda x: x, before)
    lib.impl('f', f, key)
    return lib, getattr(torch.ops, f'fisub_{before}_{key}').f

def run(x, c, y, total):
    check(x, y)
    assert calls > 0
    assert y.is_cuda and torch.zeros(1, device='cuda').is_cuda
    total.fill_(150)

`

// Code of a solution that Triton, torch or another thread calls sees the CUDA device.
func TestCallbacks(t *testing.T) {
	client := open(t, virtualCommand(t, "triton"))
	for _, check := range []string{
		"hooked('launch_enter_hook', x, y)",
		"hooked('launch_exit_hook', x, y)",
		"hooked('kernel_load_end_hook', x, y)",
		"scale[lambda meta: on_device() or (1,)](x, y, 3, BLOCK=4)",
		"triton.heuristics({'BLOCK': lambda args: on_device() or 4})(scale)[(1,)](x, y, 3)",
		"scale.add_pre_run_hook(on_device); scale[(1,)](x, y, 3, BLOCK=4)",
		"tuned(pre_hook=on_device)[(1,)](x, y, 3)",
		"tuned(post_hook=on_device)[(1,)](x, y, 3)",
		"tuned([triton.Config({'BLOCK': 4}, pre_hook=on_device)])[(1,)](x, y, 3)",
		"tuned(prune_configs_by={'early_config_prune': prune})[(1,)](x, y, 3)",
		"tuned(prune_configs_by={'perf_model': lambda **args: on_device() or 1.0, 'top_k': 1})[(1,)](x, y, 3)",
		"tuned(do_bench=lambda f, quantiles: on_device() or f() or [1.0] * 3)[(1,)](x, y, 3)",
		"in_thread(lambda: y.copy_(scaled(x)))",
		"y.copy_(in_pool(scaled, x))",
		"y.copy_(torch.library.custom_op('fisub::a', scaled, mutates_args=())(x))",
		"y.copy_(torch.library.custom_op('fisub::b', scaled, mutates_args=(), device_types='cuda')(x))",
		"y.copy_(torch.library.triton_op('fisub::c', scaled, mutates_args=())(x))",
		"lib, f = operator('CUDA'); y.copy_(f(x))",
		"lib, f = operator('CUDA', before='CPU'); y.copy_(f(x))",
		"lib, f = operator('CPU', lambda x: x, before='CUDA'); y.copy_(5 * f(x)); on_device()",
		"lib, f = operator('CompositeExplicitAutograd'); y.copy_(f(x))",
	} {
		tc := pyCall{check, fmt.Sprintf("def check(x, y):\n    %s\n", check), "", "", []float32{5, -10, 150}}
		tc.run(t, client, callbackHead)
	}
}

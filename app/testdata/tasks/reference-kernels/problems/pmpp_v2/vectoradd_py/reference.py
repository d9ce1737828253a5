import torch


def generate_input(size, seed):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16, generator=gen) for _ in range(2))
    return a, b, torch.empty(size, size, device="cuda", dtype=torch.float16)


def ref_kernel(data):
    a, b, output = data
    output[...] = a + b
    return output


def check_implementation(data, output):
    want = ref_kernel(data)
    wrong = (output - want).abs() > 1e-8 + 1e-5 * want.abs()
    wrong |= output.isnan()
    n = int(wrong.sum())
    if n == 0:
        return True, ""
    i, j = wrong.nonzero()[0].tolist()
    return False, f"mismatch found! Number of mismatched elements: {n} ERROR AT ({i}, {j}): {output[i, j]} {want[i, j]}"

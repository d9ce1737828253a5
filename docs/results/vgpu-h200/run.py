"""Runs the cases that TestAgainstGPUWrite of device/vgpu wrote, on the GPU of this machine: run.py FOLDER OUTPUT."""
import ctypes as C, hashlib, json, pathlib, subprocess, sys, zlib

folder, output = map(pathlib.Path, sys.argv[1:3])
output.mkdir(exist_ok=True)
cases = json.loads((folder / "cases.json").read_text())
if len(sys.argv) == 3:  # a fault ends a process's use of the GPU: the rest goes on in another
    at = 0
    while at < len(cases):
        if subprocess.run([sys.executable, __file__, folder, output, str(at)]).returncode == 0:
            break
        at = json.loads((output / "index.json").read_text())["next"] + 1
    print((output / "hashes.json").read_text()[:200])
    sys.exit()
start = int(sys.argv[3])
cu = C.CDLL("libcuda.so.1")
def ok(code, what):
    if code:
        raise RuntimeError(f"{what}: {code}")
ok(cu.cuInit(0), "cuInit")
device, context = C.c_int(), C.c_void_p()
ok(cu.cuDeviceGet(C.byref(device), 0), "cuDeviceGet")
ok(cu.cuDevicePrimaryCtxRetain(C.byref(context), device), "context")
ok(cu.cuCtxSetCurrent(context), "context")
name = C.create_string_buffer(99)
cu.cuDeviceGetName(name, 99, device)
driver = C.c_int()
cu.cuDriverGetVersion(C.byref(driver))
tables = {p.stem: p.read_bytes() for p in folder.glob("*.table")}
THREADS = 4096
hashes, index = {}, {}
if start:
    hashes = json.loads((output / "hashes.json").read_text())["hashes"]
    index = json.loads((output / "index.json").read_text())
raw = open(output / "raw", "ab" if start else "wb")
def save(at):
    index["next"] = at
    (output / "hashes.json").write_text(json.dumps({"device": name.value.decode(), "driver": driver.value, "hashes": hashes}, indent=1))
    (output / "index.json").write_text(json.dumps(index))
    raw.flush()
def alloc(n):
    p = C.c_uint64()
    ok(cu.cuMemAlloc_v2(C.byref(p), C.c_size_t(n)), "alloc")
    return p
big_in, big_out = alloc(1 << 20), alloc(1 << 24)
for at in range(start, len(cases)):
    c = cases[at]
    n = THREADS * c["out"]
    if c.get("tensor"): n = 32 * 32 * c["out"]
    if c["name"].startswith("wgmma"): n = 8 * 128 * c["out"]
    module, function = C.c_void_p(), C.c_void_p()
    log = C.create_string_buffer(4000)
    options, values = (C.c_int * 2)(5, 6), (C.c_void_p * 2)(C.addressof(log), 4000)
    code = cu.cuModuleLoadDataEx(C.byref(module), c["ptx"].encode(), 2, options, values)
    if code:
        hashes[c["name"]] = f"does not load: {code}"
        index[c["name"]] = log.value.decode()[:300]
        continue
    ok(cu.cuModuleGetFunction(C.byref(function), module, b"k"), "function")
    table = tables[c["table"]]
    ok(cu.cuMemcpyHtoD_v2(big_in, table, C.c_size_t(len(table))), "copy")
    ok(cu.cuMemsetD8_v2(big_out, 0, C.c_size_t(n)), "set")
    args = [big_in, big_out]
    if t := c.get("tensor"):
        buffer = (C.c_char * 256)()
        address = (C.addressof(buffer) + 63) // 64 * 64
        rank = len(t["Dims"])
        u64 = lambda v: (C.c_uint64 * 5)(*(v or []))
        u32 = lambda v: (C.c_uint32 * 5)(*(v or []))
        corner = lambda v: (C.c_int * 3)(*v)
        if t.get("Lower"):
            code = cu.cuTensorMapEncodeIm2col(C.c_void_p(address), t["Type"], rank, big_in, u64(t["Dims"]), u64(t["Strides"]), corner(t["Lower"]),
                                              corner(t["Upper"]), *t["Box"], u32(t["Steps"]), t["Interleave"], t["Swizzle"], 0, t["Fill"])
        else:
            code = cu.cuTensorMapEncodeTiled(C.c_void_p(address), t["Type"], rank, big_in, u64(t["Dims"]), u64(t["Strides"]), u32(t["Box"]),
                                             u32(t["Steps"]), t["Interleave"], t["Swizzle"], 0, t["Fill"])
        if code:
            hashes[c["name"]] = f"no tensor map: {code}"
            continue
        args.append((C.c_char * 128).from_address(address))
    pointers = (C.c_void_p * len(args))(*[C.addressof(a) for a in args])
    ok(cu.cuLaunchKernel(function, n // c["out"] // c["block"], 1, 1, c["block"], 1, 1, c.get("shared", 0), None, pointers, None), "launch " + c["name"])
    if code := cu.cuCtxSynchronize():
        hashes[c["name"]] = f"fault {code}"
        save(at)
        sys.exit(1)
    host = C.create_string_buffer(n)
    ok(cu.cuMemcpyDtoH_v2(host, big_out, C.c_size_t(n)), "copy")
    hashes[c["name"]] = hashlib.sha256(host.raw).hexdigest()[:16]
    packed = zlib.compress(host.raw, 6)
    index[c["name"]] = [raw.tell(), len(packed), n]
    raw.write(packed)
    cu.cuModuleUnload(module)
save(len(cases))
print(name.value, driver.value, len(cases), "cases", raw.tell(), "bytes;", {k: v for k, v in hashes.items() if " " in v})

# Prints what Python and its packages are, without importing them.
import sys, importlib.metadata as m, importlib.util as u, os, re
print("python", "%d.%d.%d" % sys.version_info[:3])
for name, package in (("torch", "torch"), ("triton", "triton"), ("numpy", "numpy"),
                      ("flashinfer-bench", "flashinfer_bench")):
    try:
        if u.find_spec(package) is None:
            continue
        print(name, m.version(name))
    except m.PackageNotFoundError:
        print(name, "of unknown version")
    except Exception:
        pass
try:
    with open(os.path.join(u.find_spec("torch").submodule_search_locations[0], "version.py")) as f:
        found = re.search(r"^cuda\b[^=]*= *['\"]([0-9.]+)", f.read(), re.M)
    print("torch-cuda", found.group(1) if found else "none")
except Exception:
    pass

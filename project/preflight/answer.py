"""Prints findings about an answer to a task. stdin is a JSON object, stdout a list of findings as in package source.

The header's rules are those of kernelbot's submission.py (gpu-mode/kernelbot 4bdd839a): the first lines, which begin with
# or //.
"""

import ast
import importlib.util
import json
import re
import sys

# Words in answers that a reader of the source should see. GPU MODE's gate, KernelGuard, and its bot look for them: they are
# allowed, but a submission with them is looked at, or refused.
GUARDED = [
    (r"(?i)stream", "a board warns of submissions with this word: it does not time work on another stream"),
    (r"\b(sys\.(_getframe|modules|argv)|inspect\.(stack|currentframe)|gc\.get_(objects|referrers)|__globals__)\b",
     "an answer that can tell who calls it may compute something else for its judge"),
    (r"\b(cuda\.)?(Event|synchronize|elapsed_time)\s*=[^=]", "replaces what a board times with"),
    (r"\btorch\.backends\.[\w.]+\s*=[^=]", "changes how a board's reference computes; fisub's is in another process"),
    (r"\bdata_ptr\(\)", "an address as a key of a cache gives old results for new inputs"),
    (r"\b(perf_counter\w*|time\.time\w*)\s*=[^=]", "replaces a clock"),
    (r"POPCORN_(FD|SEED)", "uses the board's own variables"),
]

# Matches the definition of a kernel in CUDA, Triton, CuTe or TileLang.
KERNEL = re.compile(r"__global__|@(triton\.|cute\.)?(jit|kernel)\b|@T\.prim_func|\bcutlass\b")

asked, found = json.load(sys.stdin), []
text = asked["text"]


def add(severity, code, line, message, hint=""):
    found.append({"severity": severity, "code": code, "line": line, "column": line and 1, "message": message, "hint": hint})


def missing():
    """Finds imports that this Python and the task lack."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
            for name in [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]:
                name = name.split(".")[0]
                if importlib.util.find_spec(name) is None and name + ".py" not in asked["files"]:
                    add("warning", "missing-import", node.lineno,
                        f"{sys.executable} has no module {name}, and the task has no such file",
                        "install it, or set FISUB_PYTHON to a Python that has it")


def directives():
    seen = set()
    for i, line in enumerate(text.split("\n"), 1):
        if not line.startswith(("#", "//")):
            break
        words = [*line.split(), "", ""]
        if words[0] not in ("#!POPCORN", "//!POPCORN"):
            continue
        key = words[1].lower()
        key = "gpus" if key == "gpu" else key
        fault = (f"!POPCORN {key} has no value" if not words[2] else
                 f"unknown directive !POPCORN {key}" if key not in ("leaderboard", "gpus") else
                 f"a second !POPCORN {key}" if key in seen else None)
        seen.add(key)
        if fault:
            add("error", "popcorn-directive", i, fault, "#!POPCORN leaderboard NAME, #!POPCORN gpus B200")
    if "leaderboard" not in seen:
        add("note", "no-leaderboard", 0, "names no leaderboard: the board asks for it",
            "#!POPCORN leaderboard NAME in the first line")


if asked["installed"]:
    missing()
if asked["board"]:
    directives()
if not KERNEL.search(text):
    add("note", "no-kernel", 0, "defines no kernel: operations of torch or of a library do the work")
for pattern, what in GUARDED:
    if word := re.search(pattern, text):
        add("note", "guarded-word", 1 + text.count("\n", 0, word.start()), f"{word[0].strip()}: {what}")
json.dump(found, sys.stdout)

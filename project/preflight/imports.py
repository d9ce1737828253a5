"""Prints the line and the name of each module that the source on stdin imports and this Python does not have."""
import ast
import importlib.util
import sys

for node in ast.parse(sys.stdin.read()).body:
    if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
        for name in [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                print(node.lineno, name.split(".")[0])

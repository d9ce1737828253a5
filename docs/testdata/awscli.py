"""Holds commands of the AWS tools, a line each on stdin, against botocore's models: operation, options, required options."""
import shlex
import sys

import botocore.session
from botocore import xform_name

session = botocore.session.get_session()
common = {"query", "output", "region", "profile"}
bad = 0
for line in sys.stdin:
    words = shlex.split(line)
    model = session.get_service_model(words[1])
    names = {xform_name(name, "-"): name for name in model.operation_names}
    if words[2] not in names:
        print(line, "no such operation")
        bad += 1
        continue
    shape = model.operation_model(names[words[2]]).input_shape
    known = {xform_name(name, "-"): name for name in shape.members}
    given = {w[2:] for w in words[3:] if w.startswith("--")}
    for option in sorted(given - set(known) - common):
        print(line, "no option", option)
        bad += 1
    counts = {"MinCount", "MaxCount"}  # of run-instances: the tools fill them in
    for name in sorted(set(shape.required_members) - {known.get(o) for o in given} - counts):
        print(line, "lacks", name)
        bad += 1
sys.exit(bad > 0)

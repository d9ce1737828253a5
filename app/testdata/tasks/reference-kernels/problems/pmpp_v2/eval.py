# A board's program of fisub's own, for the page about tasks.
import re

from reference import check_implementation, generate_input


class Case:
    def __init__(self, args):
        self.args = args


def get_test_cases(name, seed):
    cases = []
    for line in open(name):
        found = re.findall(r"(\w+): (-?\d+)", line)
        cases.append(Case({key: int(value) for key, value in found}))
        if seed is not None:
            cases[-1].args["seed"] += seed
    return cases


def run(case):
    from submission import custom_kernel
    data = generate_input(**case.args)
    return check_implementation(data, custom_kernel(data))

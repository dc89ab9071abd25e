"""Prints what each name in Triton's modules and classes stands for, as JSON."""

import json
import sys

import triton  # noqa: F401  # what is told


def told(value):
    code = getattr(getattr(value, "fget", value), "__code__", None)
    if code is not None:
        return f"{code.co_name} of {code.co_filename}"
    names = (getattr(value, "__module__", ""), getattr(value, "__name__", ""))
    return f"{type(value).__module__}.{type(value).__qualname__} {names}"


def attributes():
    found = {}
    for module, content in [*sys.modules.items()]:
        if module.partition(".")[0] != "triton":
            continue
        for name, value in vars(content).items():
            found[f"{module}.{name}"] = told(value)
            if isinstance(value, type) and value.__module__ == module:
                own = vars(value).items()
                found.update({f"{module}.{name}.{n}": told(member) for n, member in own})
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attributes()))

"""A decorator that chooses a backend at run time, as flash-linear-attention has one."""

import functools

from support.launch_patterns import double_kernel, triple_kernel, tuned_kernel


class Backend:
    implementation = None

    def is_active(self):
        return False

    def find(self, name):
        return self.implementation or getattr(self, name, None)


class OtherDevice(Backend):
    def scale(self, x):
        return launch_for_other_device(x)


class Experimental(Backend):
    pass


def launch_for_other_device(x):
    triple_kernel[(1,)](x)
    double_kernel[(1,)](x)
    missing_helper(x)  # noqa: F821  # nothing binds it
    return x


def experiment(x):
    tuned_kernel[(1,)](x)
    return x


class Registry:
    def __init__(self):
        self.backends = {}

    def dispatch(self, fn):
        name = fn.__name__

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            for backend in sorted(self.backends.values(), key=id):
                if not backend.is_active():
                    continue
                implementation = backend.find(name)
                if implementation is None:
                    continue
                result = implementation(*args, **kwargs)
                return result  # noqa: RET504  # as it is written there
            return fn(*args, **kwargs)

        return wrapper


registry = Registry()
registry.backends["other"] = OtherDevice()
registry.backends["experimental"] = Experimental()
registry.backends["experimental"].implementation = experiment


@registry.dispatch
def scale(x):
    double_kernel[(1,)](x)
    return x

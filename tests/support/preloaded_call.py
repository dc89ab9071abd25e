"""A Python that has torch imported: `python preloaded_call.py FOLDER SESSION -m opforge doctor`.

A program runs as a fork of a server, preloaded.py, which is started if there is none for it, as a
fork of one that has imported less. FOLDER holds the servers' sockets, and they end with the process
SESSION.
"""
# Without pathlib, json, socket and signal, two thirds of the time of a call; tests call hundreds
# of times.

import _signal
import _socket
import marshal
import os
import sys
import time
import zlib

READ_ON_IMPORT = ("TORCH", "PYTORCH", "TRITON_INTERPRET", "OMP_", "MKL_", "PYTHONHASHSEED")
# When it is used, and whatever imports the compiler sets it for its children.
READ_LATER = ("TORCHINDUCTOR_CACHE_DIR",)
# By what torch itself does not import.
READ_AFTER_TORCH = ("TORCHINDUCTOR_", "TRITON_INTERPRET")
READ_ON_START = ("LD_",)
WITHOUT_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
KNOWN_OPTIONS = ("-B", "-c", "-m", "-u")
HERE = os.path.dirname(os.path.realpath(__file__))
OPFORGE = os.path.realpath(f"{HERE}/../../src")
TORCH = "torch"
IMPORTS = "torch._dynamo"
# What most forks would import by themselves.
WITH_COMPILER = (
    f"{IMPORTS} torch._inductor.compile_fx torch._dynamo.repro.after_dynamo torch.export._trace "
    "torch.distributed.tensor.experimental triton.experimental.gluon torch.utils.cpp_extension "
    "torch._inductor.package sympy.tensor.tensor pytest"
)
WITH_OPFORGE = (
    f"{WITH_COMPILER} opforge.cli opforge.op opforge.native.build opforge.commands.build "
    "opforge.check.run opforge.loading.attach opforge.analysis.find rich.console "
    "rich.table rich.progress"
)
# What OPFORGE_TEST_IMPORTS may name; any other text is the modules themselves.
SETS = {"compiler": WITH_COMPILER}
PARENTS = {IMPORTS: TORCH, WITH_COMPILER: IMPORTS, WITH_OPFORGE: WITH_COMPILER}
START_S = 60.0


def call(folder, session, arguments):
    """Run a program as a fork of the server; the exit status."""
    option = arguments[0].startswith("-") and arguments[0] not in KNOWN_OPTIONS
    if option or any(name.startswith(READ_ON_START) for name in os.environ):
        os.execv(sys.executable, [sys.executable, *arguments])
    files = list(filter(_is_open, map(int, os.listdir("/proc/self/fd"))))
    connection = _connect(folder, session, _imports(arguments), os.environ)
    _ask(connection, arguments, os.environ, {number: number for number in files})
    with open(connection.fileno(), closefd=False, encoding="ascii") as answers:
        process = int(answers.readline())
        for number in (_signal.SIGINT, _signal.SIGTERM):
            _signal.signal(number, lambda number, frame: os.kill(process, number))
        status = int(answers.readline() or 1)
    if status < 0:
        if -status != _signal.SIGKILL:  # which has no handler to reset
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:  # it was the listing
        return False
    return True


def _ask(connection, arguments, variables, files):
    """Ask for a program, with files by the numbers that they have there."""
    request = {
        "arguments": arguments,
        "variables": dict(variables),
        "folder": os.getcwd(),
        "files": list(files),
    }
    handed = b"".join(number.to_bytes(4, sys.byteorder) for number in files.values())
    connection.sendmsg([b"\n"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handed)])
    connection.sendall(marshal.dumps(request))
    connection.shutdown(_socket.SHUT_WR)


def _connect(folder, session, imports, variables):
    read_later = READ_AFTER_TORCH if imports == TORCH else READ_LATER
    names = (name for name in sorted(variables) if name.startswith(READ_ON_IMPORT))
    told = repr([imports, *((n, variables[n]) for n in names if not n.startswith(read_later))])
    place = f"{folder}/{zlib.crc32(told.encode()):08x}"
    connection = _socket.socket(_socket.AF_UNIX)
    if not os.path.exists(place):
        _start_server(place, folder, session, imports, variables)
    deadline = time.monotonic() + START_S
    while connection.connect_ex(place) != 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no server at {place}; it writes to {place}.log")
        time.sleep(0.05)
    return connection


def _imports(arguments):
    if arguments[0] == "-u":  # as xdist starts a worker
        return WITH_COMPILER
    if "OPFORGE_TEST_IMPORTS" in os.environ:
        named = os.environ["OPFORGE_TEST_IMPORTS"]
        return SETS.get(named, named)
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = (place for place in places if place and os.path.exists(f"{place}/opforge"))
    is_this_one = os.path.realpath(next(found, "/")) == OPFORGE
    if not is_this_one:
        return IMPORTS
    # pytest wants to import its plugins by itself, and opforge is one.
    has_plugins = arguments[:2] == ["-m", "pytest"] and WITHOUT_PLUGINS not in os.environ
    return WITH_COMPILER if has_plugins else WITH_OPFORGE


def _start_server(place, folder, session, imports, variables):
    own = ("PYTHONPATH", "TRITON_PTXAS_PATH", *READ_LATER)
    variables = {name: text for name, text in variables.items() if name not in own}
    server = [f"{HERE}/preloaded.py", place, session, imports]
    with open(f"{place}.log", "a", encoding="utf-8") as log, open(os.devnull) as nothing:
        if parent := PARENTS.get(imports):
            connection = _connect(folder, session, parent, variables)
            files = {0: nothing.fileno(), 1: log.fileno(), 2: log.fileno()}
            _ask(connection, server, variables, files)
            connection.close()
            return
        import subprocess  # noqa: PLC0415  # one call needs it

        subprocess.Popen(
            [sys.executable, *server],
            env=variables, stdin=nothing, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(call(*sys.argv[1:3], sys.argv[3:]))

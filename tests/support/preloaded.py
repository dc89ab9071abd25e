"""A Python that has torch imported: the server that preloaded_call.py calls.

Importing torch and its compiler takes 4 s, most of what a short child process of a test costs, and
opforge's 250 modules 0.4 s. A server imports them once, and each call is a fork of it, with the
caller's arguments, variables, folder and files. There is a server for each set of variables that
torch and Triton read while they are imported, and one without opforge for programs that may not see
it; what reads its own when a process starts, as the linker does, is run without a server.
OPFORGE_TEST_IMPORTS names what a server imports instead: `torch` is without compiler and Triton.
The first server is a process of its own, and the others are forks of it and of each other. Workers
of xdist are forks, too. Servers end with the process SESSION.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
import weakref
from pathlib import Path

OPFORGE = Path(__file__).resolve().parents[2] / "src"
POLL_S = 1.0
# That Linux passes at once.
MOST_FILES = 253


def serve(place, session, imports):
    """Fork for each call, until the test session ends; returns, in a fork, what it is to run."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(place)
    except OSError:
        sys.exit(f"another server is at {place}")
    listener.listen(64)
    _import_and_freeze(imports)  # after `listen`, so that callers wait
    programs = {}  # by what tells of their end
    while _is_alive(session):
        ready, _, _ = select.select([listener, *programs], [], [], POLL_S)
        for one in ready:
            if one is listener:
                request = _fork_for_call(listener, programs)
                if request is not None:
                    return request
            else:
                process, connection = programs.pop(one)
                _, status = os.waitpid(process, 0)
                _tell(connection, os.waitstatus_to_exitcode(status))
                connection.close()
                os.close(one)
    os._exit(0)


def _import_and_freeze(imports):
    gc.disable()
    sys.path.insert(0, str(OPFORGE))
    for name in imports.split():
        importlib.import_module(name)
    sys.path.remove(str(OPFORGE))
    from quickened import quicken_compiler  # noqa: PLC0415  # beside this file
    from quickened_interpreter import quicken_interpreter  # noqa: PLC0415

    if os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules:
        quicken_interpreter()
    quicken_compiler()
    if "torch._inductor.compile_fx" in sys.modules:
        # It hashes torch's sources, in 0.3 s, and keeps the result.
        sys.modules["torch._inductor.codecache"].torch_key()
    if "opforge._compat.compiling" in sys.modules:
        # It asks Triton's assemblers, four processes that each fork would start.
        sys.modules["opforge._compat.compiling"].known_archs()
    # Programs leave torch in memory; to take its libraries apart at exit takes each 70 ms.
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False
    # Forks share what no collection touches. Most end before there is much to collect; with
    # Python's own thresholds they spend some 4% of their time on it.
    gc.freeze()
    gc.set_threshold(20_000, 20, 10_000)
    gc.enable()


def _fork_for_call(listener, programs):
    """Fork for a call; returns, in the fork alone, what it is to run."""
    connection, _ = listener.accept()
    try:
        files, request = _read(connection)
    except (EOFError, ValueError, ConnectionError):  # somebody has killed the caller
        connection.close()
        return None
    process = os.fork()
    if process == 0:
        for open_ in (listener, connection, *(c for _, c in programs.values())):
            open_.close()
        for ended in programs:
            os.close(ended)
        _place(files, request.pop("files"))
        return request
    for file in files:
        os.close(file)
    _tell(connection, process)
    programs[os.pidfd_open(process)] = process, connection
    return None


def _read(connection):
    """A call's files and what it is to run."""
    _, files, _, _ = socket.recv_fds(connection, 1, MOST_FILES)
    with connection.makefile("rb") as said:
        return files, marshal.loads(said.read())


def _place(files, numbers):
    """Give files the numbers that they have in the caller's process."""
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _tell(connection, number):
    with contextlib.suppress(ConnectionError):  # who starts a server does not wait for its end
        connection.sendall(f"{number}\n".encode())


def _is_alive(process):
    return Path(f"/proc/{process}").exists()


def run(arguments, variables, folder):
    """What the interpreter does with its arguments, in this process."""
    import multiprocessing.spawn  # noqa: F401, PLC0415  # it keeps the real Python for its own

    os.environ.clear()
    os.environ.update(variables)
    if arguments[0] == "-u":  # a worker of xdist
        arguments = arguments[1:]
    elif arguments[0] != __file__:  # another server
        quicken_child(variables)
    os.chdir(folder)
    if arguments[0] == "-B":
        sys.dont_write_bytecode = True
        arguments = arguments[1:]
    kind, *rest = arguments if arguments[0] in {"-c", "-m"} else ["file", *arguments]
    program, *sys.argv[1:] = rest
    first = {"-c": "", "-m": folder, "file": str(Path(program).resolve().parent)}[kind]
    places = [place for place in variables.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [first, *places, *sys.path[1:]]
    # Debian's own, which this process has read, would hide the one that a program imports by name.
    sys.modules.pop("sitecustomize", None)
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    sys.argv[0] = program if kind == "file" else kind
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    text = program
    if kind == "file":
        main.__file__ = program
        text = Path(program).read_text()
    exec(compile(text, getattr(main, "__file__", "<string>"), "exec"), main.__dict__)


def quicken_child(variables):
    """Save a program what tests do not need of it."""
    fork_compile_workers()
    if variables.get("TRITON_PTXAS_PATH", "") == variables.get("OPFORGE_TEST_PTXAS"):
        compile_few_kernels()
    sys.executable = variables.get("OPFORGE_TEST_PYTHON", sys.executable)
    # Tests run on every core already.
    os.sched_getaffinity = lambda _: {0}


def fork_compile_workers():
    """Fork the workers that compile kernels: as programs of their own they import Triton for 0.3 s.

    A program with one core starts one worker, before there is a thread that a fork would lose.
    """
    from multiprocessing import popen_fork, popen_spawn_posix  # noqa: PLC0415

    spawn = popen_spawn_posix.Popen

    def popen(process):
        compiles = type(process).__module__ == "opforge.native.kernels.workers"
        return (popen_fork.Popen if compiles else spawn)(process)

    popen_spawn_posix.Popen = popen


def compile_few_kernels():
    """Compile one variant of each kernel, where nothing runs machine code."""
    if "opforge" in sys.modules:
        sys.path.insert(0, str(Path(__file__).parent))
        uncompiled = importlib.import_module("uncompiled")
        del sys.path[0]
        uncompiled.install()


def end(status):
    """End as an interpreter does, but leave torch in memory: taking it down takes a second."""
    threading._shutdown()  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def status_of(error):
    """The exit status of a program that ended with this; says why, as an interpreter does."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


if __name__ == "__main__":
    request = serve(*sys.argv[1:])
    try:
        run(**request)
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        end(status_of(error))
    end(0)

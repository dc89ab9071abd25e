"""A Python that has torch imported: `python preloaded.py FOLDER SESSION -m opforge build ops.py`.

Importing torch and its compiler takes 4 s, most of what a short child process of a test costs, and
opforge's 250 modules 0.4 s. A server imports them once, and each call is a fork of it, with the
caller's arguments, variables, folder and files. There is a server for each set of variables that
torch and Triton read while they are imported, and one without opforge for programs that may not see
it; what reads its own when a process starts, as the linker does, is run without a server.
OPFORGE_TEST_IMPORTS names what a server imports instead: `torch` is without compiler and Triton.
FOLDER holds their sockets, and they end with the process SESSION.
"""

import atexit
import contextlib
import gc
import hashlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

READ_ON_IMPORT = ("TORCH", "PYTORCH", "TRITON_INTERPRET", "OMP_", "MKL_")
READ_ON_START = ("PYTHONHASHSEED", "LD_")
KNOWN_OPTIONS = ("-B", "-c", "-m")
OPFORGE = Path(__file__).resolve().parents[2] / "src"
IMPORTS = "torch._dynamo"
WITH_OPFORGE = (
    f"{IMPORTS} opforge.cli opforge.op opforge.native.build opforge.native.commands.build "
    "opforge.check.run opforge.loading.attach"
)
POLL_S = 1.0
START_S = 60.0


def call(folder, session, arguments):
    """Run a program as a fork of the server; the exit status."""
    option = arguments[0].startswith("-") and arguments[0] not in KNOWN_OPTIONS
    if option or any(name.startswith(READ_ON_START) for name in os.environ):
        os.execv(sys.executable, [sys.executable, *arguments])
    with _connect(Path(folder), session, _imports(arguments)) as connection:
        request = {"arguments": arguments, "variables": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(connection, [b"\n"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        answers = connection.makefile()
        process = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: os.kill(process, number))
        status = int(answers.readline() or 1)
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _connect(folder, session, imports):
    read = {name: text for name, text in os.environ.items() if name.startswith(READ_ON_IMPORT)}
    told = json.dumps([imports, sorted(read.items())])
    place = folder / hashlib.sha256(told.encode()).hexdigest()[:8]
    connection = socket.socket(socket.AF_UNIX)
    if not place.exists():
        _start_server(place, session, imports)
    deadline = time.monotonic() + START_S
    while connection.connect_ex(str(place)) != 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no server at {place}; it writes to {place}.log")
        time.sleep(0.05)
    return connection


def _imports(arguments):
    if "OPFORGE_TEST_IMPORTS" in os.environ:
        return os.environ["OPFORGE_TEST_IMPORTS"]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = (place for place in places if place and (Path(place) / "opforge").exists())
    is_this_one = Path(next(found, "/")).resolve() == OPFORGE
    # pytest wants to import its plugins by itself, and opforge is one.
    return WITH_OPFORGE if is_this_one and arguments[:2] != ["-m", "pytest"] else IMPORTS


def _start_server(place, session, imports):
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with place.with_suffix(".log").open("a") as log:
        subprocess.Popen(
            [sys.executable, __file__, "--serve", place, session, imports],
            env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def serve(place, session, imports):
    """Fork for each call, until the test session ends; returns, in a fork, what it is to run."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(place)
    except OSError:
        sys.exit(f"another server is at {place}")
    listener.listen(64)
    listener.settimeout(POLL_S)
    # After `listen`, so that callers wait.
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

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Forks share what no collection touches.
    gc.freeze()
    gc.enable()
    while _is_alive(session):
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            connection.setblocking(True)
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return _follow(connection)
            connection.close()
    sys.exit()


def _follow(connection):
    """Report a program's process and status to its caller; returns in the program's process."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as said:
        request = json.loads(said.read())
    process = os.fork()
    if process:
        connection.sendall(f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return request


def _is_alive(process):
    return Path(f"/proc/{process}").exists()


def run(arguments, variables, folder):
    """What the interpreter does with its arguments, in this process."""
    import multiprocessing.spawn  # noqa: F401, PLC0415  # it keeps the real Python for its own

    fork_compile_workers()
    os.environ.clear()
    os.environ.update(variables)
    sys.executable = variables.get("OPFORGE_TEST_PYTHON", sys.executable)
    os.chdir(folder)
    # Tests run on every core already.
    os.sched_getaffinity = lambda _: {0}
    if arguments[0] == "-B":
        sys.dont_write_bytecode = True
        arguments = arguments[1:]
    kind, *rest = arguments if arguments[0] in {"-c", "-m"} else ["file", *arguments]
    program, *sys.argv[1:] = rest
    first = {"-c": "", "-m": folder, "file": str(Path(program).resolve().parent)}[kind]
    places = [place for place in variables.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [first, *places, *sys.path[1:]]
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
    if sys.argv[1] == "--serve":
        request = serve(*sys.argv[2:])
        try:
            run(**request)
        except BaseException as error:  # noqa: BLE001  # as the interpreter does
            end(status_of(error))
        end(0)
    else:
        sys.exit(call(*sys.argv[1:3], sys.argv[3:]))

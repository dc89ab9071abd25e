"""What workers tell the process that started them.

xdist sends six messages per test, which take 30 s for 8,000 of them. Two are enough for one that
passes: a report, and its end.
"""


def send_less(config):
    """Keep a worker's messages that nobody reads to itself."""
    if config.getoption("durations") is not None or config.getoption("xmlpath", None):
        return  # they list set-up and teardown
    interactor = next(
        plugin
        for plugin in config.pluginmanager.get_plugins()
        if type(plugin).__name__ == "WorkerInteractor"
    )
    send = interactor.sendevent

    def sendevent(name, **given):
        if name in {"logstart", "logfinish"}:
            return
        if name == "testreport" and given["data"]["outcome"] == "passed":
            if given["data"]["when"] != "call":
                return
            given["data"]["keywords"] = {}
        send(name, **given)

    interactor.sendevent = sendevent

"""Which worker runs which tests: a file, or a folder whose files share what they build, has one."""

from xdist.scheduler import LoadFileScheduling


class Scheduling(LoadFileScheduling):
    def __init__(self, config, log, sharing):
        super().__init__(config, log)
        self._sharing = sharing

    def _split_scope(self, nodeid):
        folder = next(filter(nodeid.startswith, self._sharing), None)
        return folder or super()._split_scope(nodeid)

    def mark_test_complete(self, node, item_index, duration=0):
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        # With every message xdist counts the tests of all units that it has ever given out.
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

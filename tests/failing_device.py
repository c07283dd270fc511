"""An emulated card that fails in the middle, and stays failed."""

from edge_llm import devices
from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.errors import DeviceLost
from edge_llm.subgraphs.ops import CARD_LANE

NAME = "failing"
FAILURE = "aclrtSynchronizeStream says 507018"


class Fuse:
    """Burns through after so many launches; None: never.  It is seen at once, or ``late``, when the work is waited for."""

    after = None
    late = False
    launches = 0

    def set(self, after, late=False):
        self.after, self.late, self.launches = after, late, 0

    def launch(self):
        """A completion if there is something to see later."""
        self.launches += 1
        if self.after is None or self.launches <= self.after:
            return None
        return blow if self.late else blow()


def blow():
    raise DeviceLost(NAME, FAILURE)


class FailingDevice(EmulatedDevice):
    """The chip 310P, of which the launches go through ``fuse``."""

    def __init__(self, fuse, options):
        super().__init__("310p", options.threads, route="float16", placement=options.placement)
        self.name, self._fuse = NAME, fuse

    def build(self, subgraph, tables):
        run = super().build(subgraph, tables)
        if subgraph.lane != CARD_LANE:
            return run

        def launched(*given):
            late = self._fuse.launch()
            return run(*given) if late is None else late

        return launched


def add_failing_device():
    """Devices ``failing`` exist from now on; the fuse of all of them."""
    fuse = Fuse()
    devices.add_device(NAME, lambda name, options: FailingDevice(fuse, options))
    return fuse

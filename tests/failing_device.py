"""An emulated card that fails in the middle, and stays failed."""

from edge_llm import devices
from edge_llm.devices.emulated import EmulatedDevice
from edge_llm.errors import DeviceLost
from edge_llm.subgraphs.ops import CARD_LANE

NAME = "failing"
FAILURE = "aclrtSynchronizeStream says 507018"


class Fuse:
    """Burns through after so many launches; None: never."""

    after = None
    launches = 0

    def set(self, after):
        self.after, self.launches = after, 0

    def launch(self):
        self.launches += 1
        if self.after is not None and self.launches > self.after:
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
            self._fuse.launch()
            run(*given)

        return launched


def add_failing_device():
    """Devices ``failing`` exist from now on; the fuse of all of them."""
    fuse = Fuse()
    devices.add_device(NAME, lambda name, options: FailingDevice(fuse, options))
    return fuse

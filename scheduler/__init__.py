"""The task scheduler of edge-llm (no relation to distributions of this name on PyPI).

It knows tasks, the lanes that they occupy, which task waits for which, their durations and the order to run them in,
and nothing of language models.  It needs the standard library only.  The example is a kitchen:

>>> from edge_llm.scheduler import CostModel, TaskGraph, beam, critical_path, execute, follow, in_order, simulate
>>> def work():
...     pass
>>> kitchen = TaskGraph()
>>> for dish in ("soup", "pie"):
...     _ = kitchen.add(f"chop {dish}", "cook", work, cost_key="chop")
...     _ = kitchen.add(f"heat {dish}", "stove", work, after=[f"chop {dish}"], cost_key=f"heat {dish}")
...     _ = kitchen.add(f"serve {dish}", "cook", work, after=[f"heat {dish}"], cost_key="serve")

The duration of a task, in seconds, is learned by kind of task and lane:

>>> cost = CostModel(default=1)
>>> for key, lane, seconds in [("chop", "cook", 3), ("heat soup", "stove", 2), ("heat pie", "stove", 8)]:
...     cost.observe(key, lane, seconds)

In program order the cook waits for the soup before starting the pie.  To start the longest path first is better, and
optimal here:

>>> print(simulate(kitchen, in_order, cost).gantt(78))
cook  |[chop soup]       [se][chop pie]                             [se]|  44%
stove |           [heat ]              [heat pie-------------------]    |  56%
6 tasks in 18 s (no order beats 14 s)
>>> print(simulate(kitchen, critical_path, cost).gantt(78))
cook  |[chop pie----][chop soup---]                       [ser]    [ser]|  57%
stove |              [heat pie---------------------------][heat so]     |  71%
6 tasks in 14 s (no order beats 14 s)

Greedy policies never let the cook wait, and so start to knead just before the water boils.  A search looks ahead, and a
policy can follow what it finds:

>>> pasta = TaskGraph()
>>> for name, lane, seconds, after in [
...     ("knead", "cook", 10, []), ("boil", "stove", 1, []), ("add", "cook", 1, ["boil"]), ("simmer", "stove", 10, ["add"])
... ]:
...     _ = pasta.add(name, lane, work, after=after)
...     cost.observe(name, lane, seconds)
>>> simulate(pasta, critical_path, cost).makespan
21.0
>>> found = beam(pasta, cost)
>>> found.proven, simulate(pasta, follow(found.trace), cost).makespan
(True, 12.0)

The same policies run the real tasks, one worker per lane, and `execute` returns the same kind of trace:

>>> trace = execute(kitchen, critical_path, cost=cost)
>>> [span.name for span in trace.on("stove")]
['heat pie', 'heat soup']

A lane may also be a device that works on its own.  Its tasks send work there and return a completion, with which the task
ends; the lane's next ready task is sent meanwhile, and spans and costs are of the work:

>>> from concurrent.futures import ThreadPoolExecutor
>>> with ThreadPoolExecutor(1) as dishwasher:
...     def wash():
...         return dishwasher.submit(work).result
...     washing = TaskGraph()
...     for load in ("plates", "pots"):
...         _ = washing.add(f"wash {load}", "dishwasher", wash, cost_key="wash")
...     print([span.name for span in execute(washing).spans])
['wash plates', 'wash pots']

Read on in `tasks`, `policy`, `simulate`, `execute`, `trace`, `follow`; these use `graph_state`, `cost` and `bounds`;
`beam` and `exact` search for the best order.  Source: llm.npu (ASPLOS 2025, arXiv 2407.05858), section 3.4,
out-of-order subgraph execution.
"""

from edge_llm.scheduler.beam import Found, beam
from edge_llm.scheduler.cost import CostModel
from edge_llm.scheduler.exact import optimal
from edge_llm.scheduler.execute import Cancelled, TaskFailed, execute
from edge_llm.scheduler.follow import follow, planned
from edge_llm.scheduler.graph_state import GraphState, Policy
from edge_llm.scheduler.policy import (
    c_value,
    critical_path,
    feed,
    first_ready,
    in_order,
    largest,
    longest_first,
    per_lane,
    smallest,
)
from edge_llm.scheduler.simulate import simulate
from edge_llm.scheduler.tasks import Completion, Task, TaskGraph
from edge_llm.scheduler.trace import Span, Trace

__all__ = [
    "Cancelled",
    "Completion",
    "CostModel",
    "Found",
    "GraphState",
    "Policy",
    "Span",
    "Task",
    "TaskFailed",
    "TaskGraph",
    "Trace",
    "beam",
    "c_value",
    "critical_path",
    "execute",
    "feed",
    "first_ready",
    "follow",
    "in_order",
    "largest",
    "longest_first",
    "optimal",
    "per_lane",
    "planned",
    "simulate",
    "smallest",
]

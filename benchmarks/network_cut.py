"""A network cut between an executor and its planner: how long until it is noticed, and until the run goes on.

    python benchmarks/network_cut.py --cut-s 60

The network is a proxy on loopback that swallows everything for a while and then resets what was open. The executor has
handed in a batch and waits for its plan, with the settings of a real run; the plan is ready behind the cut.
"""

import argparse
import logging
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.plan_client import PlanClient
from infinipipe_executor.planning import Planning
from support_service import CONTEXT_TOKENS, PROFILE, background_service
from support_service.proxy import CutProxy


def main() -> None:
    """Cut, wait, heal; print when what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cut-s", type=float, default=60.0)
    cut_s = parser.parse_args().cut_s
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    batch = Batch(tuple(make_sequence(torch.arange(length)) for length in (5, 7)))
    with (
        background_service(is_held=True) as service,
        CutProxy(service.address) as proxy,
        PlanClient(proxy.address) as client,
    ):
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        planning = Planning(client, 0, PROFILE, wait_timeout_s=cut_s + 60)
        planning.submit(0, batch)
        proxy.cut()
        service.call(service.solver.let_go)
        started_s = time.monotonic()
        noticed = threading.Thread(target=_tell_first_attempt, args=(proxy, started_s, cut_s), daemon=True)
        noticed.start()
        healing = threading.Timer(cut_s, proxy.heal)
        healing.start()
        planning.fetch(0, batch)
        print(f"plan {time.monotonic() - started_s - cut_s:.1f} s after the network was back")


def _tell_first_attempt(proxy: CutProxy, started_s: float, cut_s: float) -> None:
    while not proxy.attempts_while_cut and time.monotonic() - started_s < cut_s:
        time.sleep(0.05)
    print(f"cut noticed after {time.monotonic() - started_s:.1f} s")


if __name__ == "__main__":
    main()

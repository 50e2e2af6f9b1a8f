"""The Ray executor on a cluster of two nodes that the tests start on this machine."""

import os
import signal
import sys

import pytest
from playground import Playground, definition, finish, set_aside

from vqkit.errors import UsageError

STORE = 80 << 20


@pytest.fixture(scope="module")
def cluster():
    """A cluster with a head that runs nothing and two nodes of one CPU each; (cluster, its nodes)."""
    kept = list(sys.path)  # Ray adds what it brings along
    from ray.cluster_utils import Cluster

    node = {"object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node})
    nodes = [cluster.add_node(num_cpus=1, **node) for _ in range(2)]
    cluster.wait_for_nodes()
    yield cluster, nodes
    cluster.shutdown()
    sys.path[:] = kept


def options(address, slots=2):
    """The executor's options."""
    return {"name": "ray", "slots": slots, "timeout_seconds": 60.0, "address": address}


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    return Playground(tmp_path, tiny, tiny_data)


@pytest.mark.slow
def test_real_runs_on_two_nodes_give_what_the_local_executor_gives(cluster, playground):
    """Ray's own environment (it sets OMP_NUM_THREADS) does not reach the cells."""
    playground.options["sweep"] = definition(arms=1, seeds=2)
    finish(playground.drive(role="train", executor=options(cluster[0].address)))
    assert playground.state()["states"] == {"complete": 4}
    assert len({event["detail"]["driver"] for event in playground.events("claimed")}) == 2
    other = playground.copy()
    other.forget()
    finish(other.drive(role="train"))
    assert other.evidence() == playground.evidence()


def test_a_worker_and_then_a_node_that_die_cost_one_cell_each(cluster, playground):
    run_ids = playground.plan()
    playground.tell(seconds=0.3)
    other = playground.copy()
    driver = playground.drive(executor=options(cluster[0].address))
    playground.wait_for(lambda: len(playground.worker_pids()) == 2, seconds=60)
    os.kill(playground.worker_pids()[0], signal.SIGKILL)
    playground.wait_for(lambda: playground.events("failed"))
    playground.wait_for(lambda: len(playground.worker_pids()) == 2)
    cluster[0].remove_node(cluster[1][0], allow_graceful=False)
    playground.wait_for(lambda: len(playground.events("failed")) == 2)
    errors = finish(driver)
    assert playground.state()["states"] == {"complete": 14, "crashed": 2}
    reasons = [event["detail"]["reason"] for event in playground.events("failed")]
    assert reasons[0] == "signal SIGKILL"
    assert "the task that ran it is gone" in reasons[1]
    assert sum(line.startswith("[") for line in errors.splitlines()) == 16
    set_aside(playground)
    finish(playground.drive(executor=options(cluster[0].address, slots=1)))
    other.tell()
    assert other.sweep() == 0
    assert playground.evidence() == other.evidence()
    again = {event["run_id"] for event in playground.events("retried")}
    assert [playground.times(run_id) for run_id in run_ids if run_id not in again] == [2] * 14, "once here, once there"


def test_a_driver_that_is_killed_ends_its_tasks_and_another_one_goes_on(cluster, playground):
    playground.plan()
    playground.tell(seconds=0.3)
    driver = playground.drive(executor=options(cluster[0].address, slots=1))
    playground.wait_for_done(2)
    playground.wait_for(playground.worker_pids)
    driver.kill()
    driver.communicate()
    playground.wait_for(lambda: not playground.worker_pids())
    playground.tell(environment="another")
    finish(playground.drive(executor=options(cluster[0].address, slots=1)), code=4)
    playground.tell()
    finish(playground.drive(executor=options(cluster[0].address, slots=1)))
    assert playground.state()["states"] == {"complete": 16}, "stopped, not crashed"


def test_an_interrupt_ends_the_tasks(cluster, playground):
    playground.plan()
    playground.tell(seconds=0.3)
    driver = playground.drive(executor=options(cluster[0].address, slots=1))
    playground.wait_for_done(2)
    driver.send_signal(signal.SIGINT)
    errors = finish(driver, code=5)
    assert "of 16 cells done; the same command goes on from there" in errors
    assert not playground.worker_pids()
    assert playground.state()["failed"] == 0


def test_without_ray_or_its_cluster_the_error_says_what_is_needed(playground, monkeypatch):
    with pytest.raises(UsageError, match=r"executor.address=127\.0\.0\.1:1\b") as error:
        playground.sweep(executor=options("127.0.0.1:1"))
    assert error.value.codes == ("E_EXECUTOR",)
    assert not playground.out.parent.exists()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"vqkit\[ray\]") as error:
        playground.sweep(executor=options(None))
    assert error.value.codes == ("E_EXECUTOR",)
    assert not playground.out.parent.exists()

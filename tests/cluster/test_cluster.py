"""Suites on a real Ray cluster of two nodes: workers, nodes and the driver are killed.

All but the last test have a fake harness. The last one runs the real lmms-eval, in the environment of `hosts/env`.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from helpers import ROOT, fake_lmms_eval
from helpers.command import run
from helpers.suite import arguments, count, lines, output_of, wait_until_dead, write_suite
from ray.cluster_utils import Cluster

from eadp.evaluate.journal import Journal
from eadp.evaluate.suites import harness

CELLS = 10
HEAD, FIRST, SECOND, THIRD = (f"127.0.0.{number}" for number in (2, 3, 4, 5))
PACE = 0.3


class Nodes:
    """A local Ray cluster: a head without CPUs, and nodes with one CPU each."""

    def __init__(self):
        self._cluster = Cluster()
        self._nodes = {}
        self.add(HEAD, num_cpus=0, include_dashboard=False)
        self.address = self._cluster.address

    def add(self, name, num_cpus=1, **options):
        """Add a node. On a busy machine its daemon ends because its helpers miss Ray's deadline of 15 s: try again."""
        for tries_left in reversed(range(8)):
            try:
                self._nodes[name] = self._cluster.add_node(num_cpus=num_cpus, node_ip_address=name, **options)
                return
            except Exception:
                if not tries_left:
                    raise

    def name_of(self, daemon):
        """Return the name of the node whose daemon is this process."""
        return next(name for name, node in self._nodes.items() if node.all_processes["raylet"][0].process.pid == daemon)

    def shutdown(self):
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A cluster whose processes have this checkout, a token of their own, and another working folder than the tests."""
    changed = pytest.MonkeyPatch()
    changed.setenv("RAY_USAGE_STATS_ENABLED", "0")
    changed.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    changed.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    changed.setenv("PACE", str(PACE))
    for name in harness.JUDGE_KEYS:
        changed.delenv(name, raising=False)
    changed.chdir(tmp_path_factory.mktemp("nodes"))
    started = Nodes()
    try:
        started.add(FIRST)
        started.add(SECOND)
        changed.chdir(ROOT)
        yield started
    finally:
        started.shutdown()
        changed.undo()


@pytest.fixture(scope="module")
def whole_table(nodes, tmp_path_factory):
    """The table of a run on one machine."""
    working = write_suite(tmp_path_factory.mktemp("one"))
    result = run(*arguments(working))
    assert result.exit_code == 0, result.output
    return (working / "out" / "table.md").read_text()


def on_cluster(nodes, working, *more):
    return arguments(working, "--ray", nodes.address, *more)


def start(command, **options):
    return subprocess.Popen([sys.executable, "-m", "eadp", *command], stdout=subprocess.PIPE, text=True, **options)


def wait_for(condition, process, seconds=300):
    """Wait until a condition holds while a process runs, and return its value."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return value


def parent_of(pid):
    return int(re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def kill_worker_of(pid):
    """Kill the Ray worker that runs a harness."""
    worker = parent_of(pid)
    assert Path(f"/proc/{worker}/cmdline").read_bytes().startswith(b"ray::")
    os.kill(worker, signal.SIGKILL)


def kill_node_of(pid):
    """Kill the daemon of the Ray node that runs a harness, and its worker at once, as if the machine lost its power."""
    worker = parent_of(pid)
    for process in (parent_of(worker), worker):
        os.kill(process, signal.SIGKILL)


def setting_of(pid):
    """Return what a running harness calls its setting in its logs, and its first task."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    model = dict(pair.split("=", 1) for pair in words[words.index("--model_args") + 1].split(","))
    return f"{model['method']} {model.get('keep', '')} {words[words.index('--tasks') + 1].split(',')[0]}"


def harnesses_midway(working):
    """Return the running harnesses by whether they have answered some, but few samples of their first task."""
    answered = Counter(line.rpartition("/")[0] for line in lines(working, "answered"))
    found = {True: [], False: []}
    for pid in map(int, lines(working, "pids")):
        try:
            few = 1 <= answered[setting_of(pid)] <= fake_lmms_eval.SAMPLES // 2
        except (FileNotFoundError, ProcessLookupError, ValueError):  # it has ended
            continue
        found[few].append(pid)
    return found


def records_of(working, out="out"):
    return {each["key"]: each for each in Journal.read(working / out)[1]}


def answers_in(out):
    """Return the answers in all journals of a folder, written as the fake harness logs them."""
    found = set()
    for path in out.glob("*/*/journal/samples.jsonl"):
        method, _, keep = path.parents[2].name.replace("all_tokens", "none").partition("_keep=")
        complete = path.read_text().rpartition("\n")[0].splitlines()
        found |= {f"{method} {keep} {json.loads(line)['key']}" for line in complete}
    return found


def assert_everything_ran_once(working, out="out"):
    """Every cell ended once, and no answer was computed twice."""
    assert len(records_of(working, out)) == CELLS
    assert set(Counter(lines(working, "ends")).values()) == {1}
    assert count(working, "ends") == CELLS
    assert set(Counter(lines(working, "answered")).values()) == {1}
    journals = [Journal.read(path.parent)[1] for path in (working / out).glob("*/*/journal/manifest.json")]
    assert sorted(map(len, journals)) == 5 * [fake_lmms_eval.SAMPLES] + 5 * [2 * fake_lmms_eval.SAMPLES]


def test_cluster_gives_the_table_of_one_machine(nodes, whole_table, tmp_path):
    working = write_suite(tmp_path)
    result = run(*on_cluster(nodes, working))
    assert result.exit_code == 0, result.output
    assert (working / "out" / "table.md").read_text() == whole_table
    assert_everything_ran_once(working)
    assert {each["host"] for each in records_of(working).values()} == {FIRST, SECOND}
    assert not list((working / "out").glob(".*"))
    again = run(*on_cluster(nodes, working))
    assert again.exit_code == 0
    assert count(working, "starts") == CELLS


def test_killed_workers_nodes_and_drivers_lose_nothing(nodes, whole_table, tmp_path):
    working = write_suite(tmp_path)
    command = on_cluster(nodes, working)

    def on_second(pid):
        return nodes.name_of(parent_of(parent_of(pid))) == SECOND

    def all_midway():
        found = harnesses_midway(working)
        return found[True] and not found[False]

    with start(command) as driver:
        kill_worker_of(wait_for(lambda: harnesses_midway(working)[True], driver)[0])
        wait_for(lambda: count(working, "ends") > 1 and all_midway(), driver)
        driver.send_signal(signal.SIGKILL)
    wait_until_dead(working)
    interrupted = records_of(working)
    assert len(interrupted) < CELLS
    with start(command) as driver:
        kill_node_of(wait_for(lambda: [pid for pid in harnesses_midway(working)[True] if on_second(pid)], driver)[0])
        nodes.add(THIRD)
        output = driver.communicate(timeout=300)[0]
        assert driver.returncode == 0, output
    assert (working / "out" / "table.md").read_text() == whole_table
    assert_everything_ran_once(working)
    records = records_of(working)
    assert {key: records[key] for key in interrupted} == interrupted
    assert max(each["attempts"] for each in records.values()) > 1
    assert count(working, "starts") > CELLS


def test_nodes_that_do_not_see_the_folder_send_the_results(nodes, whole_table, tmp_path):
    """/proc/self/cwd is another folder on the driver and on the nodes, as without a shared file system."""
    working = write_suite(tmp_path)
    folder = tmp_path / "driver"
    folder.mkdir()
    unshared = on_cluster(nodes, working, "--out", "/proc/self/cwd/out")
    with start(unshared, cwd=folder) as driver:
        wait_for(lambda: count(working, "answered") >= 15 and harnesses_midway(working)[True], driver)
        received = answers_in(folder / "out")
        kill_worker_of(wait_for(lambda: harnesses_midway(working)[True], driver)[0])
        wait_for(lambda: count(working, "answered") >= 60, driver)
        received |= answers_in(folder / "out")
        driver.send_signal(signal.SIGKILL)
    wait_until_dead(working)
    with start(unshared, cwd=folder) as driver:
        output = driver.communicate(timeout=300)[0]
        assert driver.returncode == 0, output
    assert len(received) > 15
    assert {Counter(lines(working, "answered"))[answer] for answer in received} == {1}
    assert (folder / "out" / "table.md").read_text() == whole_table
    records = records_of(folder)
    assert len(records) == CELLS
    for key, record in records.items():
        answers = Journal.read(folder / "out" / record["journal"])[1]
        assert len(answers) == record["answers"] == len({each["key"] for each in answers}), key
        assert list((folder / "out" / record["journal"]).parent.glob("harness/*/*_results.json"))
        assert (folder / "out" / record["journal"]).parent.joinpath("log.txt").exists()


def test_failures_on_nodes_are_named_and_the_others_continue(nodes, tmp_path):
    working = write_suite(tmp_path)
    broken = json.loads((working / "suite.json").read_text())
    broken["benchmarks"][0]["metrics"] = ["misses,none"]
    (working / "suite.json").write_text(json.dumps(broken))
    result = run(*on_cluster(nodes, working, "--methods", "eadp", "--keep", "64"))
    assert result.exit_code == 1
    assert "failed: eadp 64 on GQA: misses,none matches 0 figures of first" in output_of(result)
    assert len(records_of(working)) == 2


def test_cell_that_kills_every_worker_fails_after_the_retries(nodes, tmp_path):
    working = write_suite(tmp_path)
    source = (working / "python").read_text()
    deadly = source.replace("answers = answer(", "os.kill(os.getppid(), 9)\n    answers = answer(")
    assert deadly != source
    (working / "python").write_text(deadly)
    one = ("--methods", "eadp", "--keep", "64", "--only", "GQA", "--retries", "1")
    result = run(*on_cluster(nodes, working, *one))
    assert result.exit_code == 1
    assert "failed: eadp 64 on GQA: its worker or node died 2 times" in output_of(result)
    assert count(working, "starts") == 2 * 2


def test_setup_of_nodes_is_checked_before_anything_runs(nodes, tmp_path):
    working = write_suite(tmp_path)
    for more, message in (
        (
            ("--python", f"{FIRST}=/nowhere/python"),
            f"node {FIRST}: /nowhere/python is not a working Python interpreter",
        ),
        (("--python", "elsewhere=/python"), "names the node elsewhere, but the cluster has 127.0.0."),
        (("--gpus-per-task", "1"), "no node of the cluster has a CPU and 1 GPUs for a task; the largest has 0 GPUs"),
        (("--gpus-per-task", "1.5"), "a share of one GPU or a whole number, got 1.5"),
        (("--ray", "ray://127.0.0.1:10001"), "run the command on a node of the cluster"),
        (("--ray", "127.0.0.1:1"), "there is no Ray cluster at '127.0.0.1:1'"),
        (("--ray", "127.0.0.1:port"), "there is no Ray cluster at '127.0.0.1:port'"),
    ):
        result = run(*on_cluster(nodes, working, *more))
        assert result.exit_code == 2, result.output
        assert message in output_of(result)
    assert not (working / "out").exists()
    assert not count(working, "starts")


def test_nodes_can_have_different_interpreters(nodes, tmp_path):
    working, other = write_suite(tmp_path), tmp_path / "other"
    other.mkdir()
    write_suite(other)
    assert run(*on_cluster(nodes, working, "--python", f"{FIRST}={other / 'python'}")).exit_code == 0
    hosts = Counter(each["host"] for each in records_of(working).values())
    assert count(other, "starts") == hosts[FIRST] > 0
    assert count(working, "starts") == CELLS - hosts[FIRST] > 0


def test_dry_run_counts_the_tasks_that_the_cluster_runs_at_once(nodes, tmp_path):
    working = write_suite(tmp_path)
    result = run(*on_cluster(nodes, working, "--dry-run"))
    assert result.exit_code == 0, result.output
    assert "10 of 10 tasks are left. Each takes 0 GPUs; 2 run at the same time, on 0 GPUs in all." in output_of(result)
    assert not (working / "out").exists()


@pytest.mark.slow
def test_the_real_lmms_eval_fills_the_same_table(nodes, tmp_path):
    python = tmp_path / "python"
    made = subprocess.run([ROOT / "hosts" / "env", "lmms-eval"], capture_output=True, text=True, check=True)
    hosts = ROOT / "tests" / "hosts"
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "hosts" / "shim", hosts, hosts / "lmms-eval")))
    python.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={paths} HF_HOME={tmp_path / 'hub'} HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1\n"
        f'exec {made.stdout.strip()}/bin/python "$@"\n'
    )
    python.chmod(0o755)
    write_tasks = "import pathlib, sys, tasks; tasks.write(pathlib.Path(sys.argv[1]), 6)"
    subprocess.run([python, "-c", write_tasks, tmp_path / "tasks"], check=True)
    names = {"POPE": ("pocket_pope", "pope_accuracy,none"), "choice": ("pocket_choice", "choice_accuracy,none")}
    benchmarks = [
        {"name": name, "harness": "lmms-eval", "tasks": [task], "metrics": [metric], "scale": 100}
        for name, (task, metric) in names.items()
    ]
    suite = {"model": "pocket", "include": "tasks", "benchmarks": benchmarks}
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    command = ["eval", str(tmp_path / "suite.json"), "--keep", "3", "--python", str(python)]

    alone = run(*command, "--out", str(tmp_path / "alone"))
    together = run(*command, "--out", str(tmp_path / "together"), "--ray", nodes.address)

    assert (alone.exit_code, together.exit_code) == (0, 0), alone.output + together.output
    tables = [(tmp_path / out / "table.md").read_text() for out in ("alone", "together")]
    assert tables[0] == tables[1]
    hosts_of = {each["host"] for each in records_of(tmp_path, "together").values()}
    assert len(records_of(tmp_path, "together")) == 2 * len(names)
    assert hosts_of <= {FIRST, SECOND, THIRD}

"""The environment of a launcher, and collectives in a single process."""

import multiprocessing
import os
import signal
import time
from unittest import mock

import pytest
import torch
from support.processes import PRELOADED

from seamseg.utils import distributed as module
from seamseg.utils.distributed import (
    CollectiveError,
    World,
    barrier,
    choose_device,
    distributed,
    gather_objects,
    mean_over_processes,
    run_in_processes,
    sum_over_processes,
)
from seamseg.utils.errors import InputError, SeamsegError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
VARIABLES += ("SEAMSEG_TIMEOUT_MINUTES", "SEAMSEG_CUDA_BACKEND")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_there_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with distributed("cpu") as world:
        assert world == World()
        barrier(world)
        assert gather_objects(world, "mine") == ["mine"]
        assert mean_over_processes(world, {"a": 2.0}) == {"a": 2.0}
        assert sum_over_processes(world, torch.tensor([3])).tolist() == [3]


LAUNCHER = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, r"MASTER_PORT is missing or wrong \('MASTER_ADDR'\); start with torchrun"),
        ({**LAUNCHER, "RANK": "2"}, "is missing or wrong"),
        ({**LAUNCHER, "RANK": "x"}, "is missing or wrong"),
        ({**LAUNCHER, "SEAMSEG_TIMEOUT_MINUTES": "soon"}, "SEAMSEG_TIMEOUT_MINUTES=soon"),
    ],
)
def test_a_broken_environment(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message), distributed("cpu"):
        pass


def test_devices(monkeypatch):
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(torch.device("meta")) == torch.device("meta")
    assert choose_device("auto").type in ("cpu", "cuda")
    with pytest.raises(InputError, match="not a device"):
        choose_device("gpu0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="finds no GPU"):
        choose_device("cuda")


@pytest.fixture
def group(monkeypatch):
    """A launcher of two processes, whose group is only recorded; no GPU is needed."""
    for name, value in LAUNCHER.items():
        monkeypatch.setenv(name, value)
    calls = mock.Mock()
    monkeypatch.setattr(module, "choose_device", lambda name, local_rank: torch.device(name))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", calls.init)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", calls.destroy)
    return calls


@pytest.mark.parametrize(
    ("device", "error", "leaves"),
    [
        ("cuda", CollectiveError("a signal"), True),
        ("cuda", SeamsegError("a loss of this process"), False),
        ("cuda", KeyboardInterrupt(), False),
        ("cpu", SeamsegError("a loss of this process"), True),
    ],
)
def test_a_group_of_nccl_is_destroyed_only_if_all_processes_destroy_it(group, device, error, leaves):
    with pytest.raises(type(error)) as raised, distributed(device):
        raise error
    assert raised.value is error
    assert group.destroy.called == leaves


@pytest.mark.parametrize(
    ("device", "variable", "backend"),
    [
        ("cpu", None, "gloo"),
        ("cuda", None, "cpu:gloo,cuda:nccl"),
        ("cuda", "gloo", "cpu:gloo,cuda:gloo"),
    ],
)
def test_backend_of_collectives(monkeypatch, group, device, variable, backend):
    if variable is not None:
        monkeypatch.setenv("SEAMSEG_CUDA_BACKEND", variable)
    with distributed(device):
        pass
    assert group.init.call_args.args == (backend,)
    monkeypatch.setenv("SEAMSEG_CUDA_BACKEND", "mpi")
    with pytest.raises(InputError, match="SEAMSEG_CUDA_BACKEND=mpi: must be nccl or gloo"), distributed("cuda"):
        pass


class _Broken:
    def __reduce__(self):
        return os._exit, (3,)


def _ranks(argument):
    with distributed("cpu") as world:
        if argument == world.rank:
            raise InputError(f"broken {argument}")
        if argument == "killed" and world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if argument == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP) if world.rank == 1 else time.sleep(2)
            raise InputError("stopped")
        return gather_objects(world, (world.rank, torch.get_num_threads(), argument))


def test_processes_of_this_machine_form_a_group(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", threads := mock.Mock())
    monkeypatch.setenv("MASTER_ADDR", "of a user")
    environment = dict(os.environ)
    found = run_in_processes(2, _ranks, "x")
    assert found == [(0, 6, "x"), (1, 3, "x")], "the threads of the second are its own"
    assert [call.args for call in threads.call_args_list] == [(3,), (6,)]
    assert dict(os.environ) == environment


@pytest.fixture
def forked(monkeypatch):
    """Fork processes from a server that has loaded torch, which takes longer than such a test."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    start = torch.multiprocessing.start_processes

    def from_server(*given, start_method, **options):
        return start(*given, start_method="forkserver", **options)

    monkeypatch.setattr(torch.multiprocessing, "start_processes", from_server)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (0, "broken 0"),
        (1, "process 1: broken 1"),
        ("killed", "process 1 was ended by signal 9"),
        ("stopped", "stopped"),
        (_Broken(), "process 1 has ended with code 3"),
    ],
)
def test_a_process_that_fails_ends_all(broken, message, capfd):
    others = set(multiprocessing.active_children())
    with pytest.raises(SeamsegError, match=f"^{message}$"):
        run_in_processes(2, _ranks, broken)
    assert not set(multiprocessing.active_children()) - others
    assert not capfd.readouterr().err

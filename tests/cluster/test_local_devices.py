"""Which pod of a local run has which device."""

from __future__ import annotations

from trainmaster_operator.local.pod_cuda_devices import DevicePool

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_all_pods_see_all_devices_of_the_run() -> None:
    pool = DevicePool(["2", "3"])
    assert pool.take("a") == pool.take("b") == {"CUDA_VISIBLE_DEVICES": "2,3", **ORDER}


def test_pods_that_are_to_see_none_find_an_empty_list() -> None:
    assert DevicePool([], each=2).take("a") == {"CUDA_VISIBLE_DEVICES": "", **ORDER}


def test_where_nobody_chose_pods_see_what_the_command_sees() -> None:
    assert DevicePool(None, each=2).take("a") == {}


def test_no_two_pods_have_one_device_and_one_that_finds_none_waits_for_an_end() -> None:
    pool = DevicePool(["0", "1", "2", "3"], each=2)
    assert pool.take("a") == {"CUDA_VISIBLE_DEVICES": "0,1", **ORDER}
    assert pool.take("b") == {"CUDA_VISIBLE_DEVICES": "2,3", **ORDER}
    assert pool.take("c") is None
    pool.give_back("a")
    assert pool.take("c") == {"CUDA_VISIBLE_DEVICES": "0,1", **ORDER}
    pool.give_back("d")
    assert pool.take("d") is None

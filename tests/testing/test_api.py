"""`Api` has the names of all APIs of the package, and `FakeCluster.fail` accepts them."""

from __future__ import annotations

import pytest

from aiokprod._wire.messages import APIS
from aiokprod.testing import Api, Code, FakeCluster


def test_names_and_keys_are_those_of_the_messages() -> None:
    assert {key: api.module.upper() for key, api in APIS.items()} == {
        api.value: api.name for api in Api
    }


@pytest.mark.parametrize("code", [0, Code.NONE, 12345])
def test_fail_refuses_what_is_no_error(code: int) -> None:
    with pytest.raises(ValueError, match="is not an error code"):
        FakeCluster().fail(Api.PRODUCE, code)

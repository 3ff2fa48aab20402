import pytest

pytest.importorskip("aiokafka")

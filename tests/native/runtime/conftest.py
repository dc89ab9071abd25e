"""The runtime's tests run on the drivers of both vendors."""

import pytest

from support.standin.driver import AMD, NVIDIA


@pytest.fixture(params=[NVIDIA, AMD], ids=lambda vendor: vendor.name)
def vendor(request):
    return request.param

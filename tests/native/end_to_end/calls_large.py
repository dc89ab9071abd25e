"""A kernel that needs more shared memory than it gets unasked, on NVIDIA's GPUs."""

import pytest
import torch


@pytest.mark.parametrize("k", [0, 16, 64, 100])
def test_more_shared_memory_than_a_kernel_gets_unasked(large, k):
    a, b = torch.randn(128, k).half(), torch.randn(k, 128).half()
    torch.testing.assert_close(
        large.one("large", a, b), a.float() @ b.float(), rtol=1e-3, atol=1e-3
    )
    large.saw(lambda k: k["images"][0]["shared"] > 49152, [True])
    large.saw(lambda k: k["images"][0]["shared"], [x.shared for x in large.launches])

"""An index out of bounds raises what eager raises, with the index, the size, the operator and the user's line."""

from __future__ import annotations

import pytest
import torch

import eductor

CASES = {
    "index": (lambda x, i: x[i] + 1, IndexError, "index 7 is out of bounds for dimension 0 with size 4"),
    "from the end": (lambda x, i: x[:, -i], IndexError, "index -7 is out of bounds for dimension 1 with size 3"),
    "write": (lambda x, i: x.index_put((i,), x[0]), IndexError, "index 7 .* size 4, in index_put"),
    "gather": (lambda x, i: x.gather(0, i[:, None]) * 2, RuntimeError, "index 7 .* size 4, in gather"),
    "embedding": (lambda x, i: torch.embedding(x, i) * 2, IndexError, "index 7 .* size 4, in embedding"),
    "computed": (lambda x, i: x.sin()[i * 2 - 9], IndexError, "index -7 .* size 4, in index"),
    "from floats": (lambda x, i: x[(x[0] * 0 + 9).long()], IndexError, "an index is out of bounds, in index"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_is_eagers(case):
    program, kind, message = CASES[case]
    x, index = torch.ones(4, 3), torch.tensor([1, 7])
    with pytest.raises(kind):
        program(x, index)
    compiled = eductor.compile(program, engine="inductor", strict=True)
    with pytest.raises(kind, match=f"{message}.*{__file__}") as raised:
        compiled(x, index)
    assert type(raised.value) is kind
    torch._dynamo.reset()


def test_other_calls_of_the_same_graph_go_on():
    compiled = eductor.compile(lambda x, i: x[i] + 1, engine="inductor", strict=True)
    x = torch.ones(4, 3)
    for last in (3, 7, 2):
        index = torch.tensor([1, last])
        if last == 7:
            with pytest.raises(IndexError, match="index 7"):
                compiled(x, index)
        else:
            assert torch.equal(compiled(x, index), x[index] + 1)


def test_an_index_in_a_layer_that_is_compiled_once():
    def layers(x, i):
        for _ in range(4):
            x = torch.tanh(x @ x.t() @ x) + x[i * 2 - 2]
        return x

    compiled = eductor.compile(layers, engine="inductor", strict=True, regions=True)
    x = torch.ones(4, 3)
    index = torch.tensor([1, 2, 1, 0])
    with pytest.raises(IndexError, match=f"index 6 .*size 4, in index.*{__file__}"):
        compiled(x, torch.tensor([1, 2, 1, 4]))
    assert torch.allclose(layers(x, index), compiled(x, index))

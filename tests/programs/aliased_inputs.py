"""Inputs that are the same tensor or that overlap."""

import torch

from .comparing import Case, backward, each_call, leaf, plain, program, seen, watched


@program(lines=(18,))
def the_same_tensor_twice():
    x = leaf(3, 4)
    return Case(lambda a, b: a * b.sin(), (x, x))


@program(lines=(18,), steps=each_call, dynamic_on_inductor=True)
def the_same_tensor_twice_then_two_tensors():
    x, y = leaf(3, 4), leaf(3, 4)
    return Case(lambda a, b: a * b.sin() + a, calls=((x, x), (x, y), (y, x)))


@program(lines=(18, 7))
def the_same_tensor_twice_and_written():
    def fn(a, b):
        a.add_(1)
        return b * 2

    x = plain(3, 4)
    return Case(fn, (x, x))


@program(lines=(18, 7), steps=each_call)
def the_same_tensor_twice_and_written_then_two_tensors():
    def fn(a, b):
        a.add_(1)
        return b * 2

    x, y = plain(3, 4), plain(3, 4)
    return Case(fn, calls=((x, x), (x, y), (y, y)))


@program(lines=(18, 7), steps=each_call)
def two_tensors_and_then_the_same_one_written():
    def fn(a, b):
        a.mul_(2)
        return a + b

    x, y = plain(3, 4), plain(3, 4)
    return Case(fn, calls=((x, y), (x, x)))


@program(lines=(18, 25))
def the_same_differentiable_tensor_twice_and_written():
    def fn(a, b):
        a.mul_(2)
        return a * b

    base = leaf(3, 4)
    x = base * 1
    return Case(fn, (x, x), tensors={"base": base})


@program(lines=(18, 5), exact_on_aten=False)
def the_same_tensor_twice_and_returned():
    x = leaf(3, 4)
    return Case(lambda a, b: (a, b, a + b), (x, x))


@program(lines=(18,))
def a_parameter_that_is_also_an_input():
    weight = leaf(4, 4)
    return Case(lambda x: x @ weight, (weight,), tensors={"weight": weight})


def written(a, b):
    a.add_(1)
    return b * 2


@program(lines=(27,))
def overlapping_slices_and_one_written():
    base = plain(8)
    return Case(written, (base[:5], base[3:8][:5]), tensors={"base": base})


@program(lines=(27,))
def disjoint_slices_and_one_written():
    base = plain(8)
    return Case(written, (base[:4], base[4:]), tensors={"base": base})


@program(lines=(27,), steps=each_call, dynamic_on_inductor=True)
def overlapping_then_disjoint_then_apart():
    base = plain(8)
    calls = ((base[:4], base[2:6]), (base[:4], base[4:]), (plain(4), plain(4)), (base[1:5], base[2:6]))
    return Case(written, calls=calls, tensors={"base": base})


@program(lines=(27,), steps=each_call)
def apart_then_overlapping():
    base = plain(8)
    return Case(written, calls=((plain(4), plain(4)), (base[:4], base[2:6])), tensors={"base": base})


@program(lines=(27,))
def base_and_its_slice_and_the_base_written():
    base = plain(3, 4)
    return Case(written, (base, base[1:]))


@program(lines=(27,))
def base_and_its_slice_and_the_slice_written():
    base = plain(3, 4)
    return Case(written, (base[1], base))


@program(lines=(27,))
def base_and_its_transpose_and_both_written():
    def fn(a, b):
        a.add_(1)
        b[0] = 5
        return a * 1, b.sum()

    base = plain(4, 4)
    return Case(fn, (base, base.t()))


@program(lines=(27,))
def interleaved_columns_and_one_written():
    """They share memory but no element."""
    base = plain(4, 6)
    return Case(written, (base[:, ::2], base[:, 1::2]), tensors={"base": base})


@program(lines=(27, 6))
def overlapping_slices_and_neither_written():
    base = plain(8)
    return Case(lambda a, b: (a * b).sum(), (base[:5].requires_grad_(), base[3:8]), tensors={"base": base})


@program(lines=(27, 25))
def overlapping_slices_of_a_nonleaf_and_one_written():
    base = leaf(8)
    middle = base * 1
    return Case(written, (middle[:5], middle[3:8]), tensors={"base": base, "middle": middle})


@program(lines=(27, 25), steps=each_call)
def overlapping_slices_of_nonleaves_called_twice():
    base = leaf(8)
    first, second = base * 1, base * 2
    calls = ((first[:5], first[3:8]), (second[:4], second[4:]))
    return Case(written, calls=calls, tensors={"base": base})


def base_is_used_after(call, case):
    out = call(*case.inputs)
    backward((case.tensors["middle"], out))
    return {"out": out, "inputs": [seen(x) for x in case.inputs], "all": list(watched(case))}


@program(lines=(27, 25), steps=base_is_used_after)
def the_base_of_written_slices_is_used_after():
    base = leaf(8)
    middle = base * 1
    return Case(written, (middle[:5], middle[3:8]), tensors={"base": base, "middle": middle})


@program(lines=(27, 26), fallback="overlapping inputs with several histories")
def overlapping_leaf_slices_written_under_no_grad():
    def fn(a, b):
        with torch.no_grad():
            a.add_(1)
        return b * 2

    base = plain(8)
    return Case(fn, (base[:5].requires_grad_(), base[3:8].requires_grad_()), tensors={"base": base})


@program(lines=(27, 25), fallback="overlapping inputs with several histories")
def a_gradient_written_to_a_base_beside_its_detached_slice():
    base = plain(2, 3)
    return Case(lambda a, b, c: (a.copy_(c), b * 2), (base, base.detach()[1:], leaf(3)))


@program(lines=(27, 25), fallback="overlapping inputs with several histories")
def a_gradient_written_to_a_detached_slice_beside_its_base():
    base = plain(2, 3)
    return Case(lambda a, b, c: (b.mul_(c), a * 2), (base, base.detach()[1:], leaf(3)))


@program(lines=(27,))
def written_slice_and_a_view_of_it_returned():
    def fn(a, b):
        a.mul_(2)
        return b[1:], a

    base = plain(8)
    return Case(fn, (base[:5], base[3:8]), tensors={"base": base})


@program(lines=(27, 4), fallback="overlapping inputs of several dtypes")
def overlapping_inputs_of_two_dtypes():
    def fn(a, b):
        a.add_(1)
        return b + 1

    base = torch.arange(8, dtype=torch.int32)
    return Case(fn, (base, base.view(torch.float32)))

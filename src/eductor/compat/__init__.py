"""Adapters for torch's private names and for differences between its versions.

operators   properties of torch's operators beyond their schemas
graphs      graphs of torch.fx, their nodes and metadata
tensors     a tensor's state in autograd and its memory layout
symbols     symbolic and data-dependent sizes
state       global state that operators depend on
tracing     the state of a trace, and of a running backward
dynamo      Dynamo's compiles, their reasons, and its export
garbage     the garbage collector while a graph is compiled
"""

from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as in_kernel_invocation_manager
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx as make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.fx.experimental.symbolic_shapes import statically_known_true as statically_known_true
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

from eductor.compat.cuda_graphs import CaptureFailed as CaptureFailed
from eductor.compat.cuda_graphs import CudaGraphs as CudaGraphs
from eductor.compat.cuda_graphs import copy_all as copy_all
from eductor.compat.cuda_graphs import form_of as form_of
from eductor.compat.cuda_graphs import has_inner_overlap as has_inner_overlap
from eductor.compat.cuda_graphs import is_observed as is_observed
from eductor.compat.cuda_graphs import is_unsafe_in_cuda_graphs as is_unsafe_in_cuda_graphs
from eductor.compat.dynamo import RESUMED as RESUMED
from eductor.compat.dynamo import CompileState as CompileState
from eductor.compat.dynamo import code_name as code_name
from eductor.compat.dynamo import compile_id as compile_id
from eductor.compat.dynamo import default_backend as default_backend
from eductor.compat.dynamo import dynamo_export as dynamo_export
from eductor.compat.dynamo import is_traced as is_traced
from eductor.compat.dynamo import isolated_compile as isolated_compile
from eductor.compat.dynamo import original_of as original_of
from eductor.compat.dynamo import recompile_reason as recompile_reason
from eductor.compat.dynamo import trace_artifact as trace_artifact
from eductor.compat.graphs import EXPORTED_CHECKS as EXPORTED_CHECKS
from eductor.compat.graphs import INHERITED_META as INHERITED_META
from eductor.compat.graphs import calls_of as calls_of
from eductor.compat.graphs import checkpointed_in as checkpointed_in
from eductor.compat.graphs import codegen_of as codegen_of
from eductor.compat.graphs import created_nodes as created_nodes
from eductor.compat.graphs import has_checkpoint_policy as has_checkpoint_policy
from eductor.compat.graphs import has_hooks as has_hooks
from eductor.compat.graphs import is_erased as is_erased
from eductor.compat.graphs import lazy_module as lazy_module
from eductor.compat.graphs import must_be_saved as must_be_saved
from eductor.compat.graphs import prefers_saving as prefers_saving
from eductor.compat.graphs import sort_key as sort_key
from eductor.compat.graphs import wants_recompute as wants_recompute
from eductor.compat.operators import MAYBE_ALIASING_TAG as MAYBE_ALIASING_TAG
from eductor.compat.operators import SIZE_CHECKS as SIZE_CHECKS
from eductor.compat.operators import TENSOR_BASE as TENSOR_BASE
from eductor.compat.operators import changes_geometry as changes_geometry
from eductor.compat.operators import check_one_hot as check_one_hot
from eductor.compat.operators import gets_tokens as gets_tokens
from eductor.compat.operators import has_effects as has_effects
from eductor.compat.operators import has_grouped_product as has_grouped_product
from eductor.compat.operators import has_inductor_table as has_inductor_table
from eductor.compat.operators import is_composite as is_composite
from eductor.compat.operators import is_dispatched as is_dispatched
from eductor.compat.operators import is_marked_impure as is_marked_impure
from eductor.compat.operators import is_random as is_random
from eductor.compat.operators import is_transform as is_transform
from eductor.compat.operators import operator_bindings as operator_bindings
from eductor.compat.operators import quantized_operators as quantized_operators
from eductor.compat.operators import register_fake as register_fake
from eductor.compat.operators import sums_for_running_products as sums_for_running_products
from eductor.compat.state import DispatchState as DispatchState
from eductor.compat.state import RandomState as RandomState
from eductor.compat.state import any_autocast as any_autocast
from eductor.compat.state import autocast_cache as autocast_cache
from eductor.compat.state import autocast_step as autocast_step
from eductor.compat.state import float32_precisions as float32_precisions
from eductor.compat.state import global_state as global_state
from eductor.compat.state import has_context_switch as has_context_switch
from eductor.compat.state import is_context_switch as is_context_switch
from eductor.compat.state import keeping_dispatch_state as keeping_dispatch_state
from eductor.compat.state import random_state as random_state
from eductor.compat.state import replayed_randomness as replayed_randomness
from eductor.compat.state import switch_context as switch_context
from eductor.compat.state import uses_tf32 as uses_tf32
from eductor.compat.state import without_autocast as without_autocast
from eductor.compat.symbols import forgetting_unbacked as forgetting_unbacked
from eductor.compat.symbols import has_unbacked_symbols as has_unbacked_symbols
from eductor.compat.symbols import is_symbolic as is_symbolic
from eductor.compat.symbols import made_of as made_of
from eductor.compat.symbols import new_symbol as new_symbol
from eductor.compat.symbols import number_at as number_at
from eductor.compat.symbols import other_sizes as other_sizes
from eductor.compat.symbols import same_unbacked as same_unbacked
from eductor.compat.symbols import size_as_node as size_as_node
from eductor.compat.symbols import symbol_of as symbol_of
from eductor.compat.symbols import symbols_of as symbols_of
from eductor.compat.symbols import without_new_guards as without_new_guards
from eductor.compat.tensors import expect_dynamic as expect_dynamic
from eductor.compat.tensors import is_batched as is_batched
from eductor.compat.tensors import is_transformed as is_transformed
from eductor.compat.tensors import is_wrapper_subclass as is_wrapper_subclass
from eductor.compat.tensors import made_without_grad_mode as made_without_grad_mode
from eductor.compat.tensors import memory_format_of as memory_format_of
from eductor.compat.tensors import must_not_be_written as must_not_be_written
from eductor.compat.tensors import owns_alone as owns_alone
from eductor.compat.tensors import plain_strides as plain_strides
from eductor.compat.tensors import set_versions as set_versions
from eductor.compat.tensors import storage_owners as storage_owners
from eductor.compat.tensors import version_of as version_of
from eductor.compat.tensors import with_history as with_history
from eductor.compat.tracing import has_saved_tensors_hooks as has_saved_tensors_hooks
from eductor.compat.tracing import keeps_graph as keeps_graph
from eductor.compat.tracing import last_traced_node as last_traced_node
from eductor.compat.tracing import sequence_number as sequence_number
from eductor.compat.tracing import shape_of_last_gradient as shape_of_last_gradient
from eductor.compat.tracing import taking_real_tensors as taking_real_tensors
from eductor.compat.tracing import tracing_autograd as tracing_autograd
from eductor.compat.tracing import without_tracing_context as without_tracing_context

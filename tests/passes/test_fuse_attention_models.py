"""fuse_attention on the models of a library that spells attention by hand when it is asked to."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.passes.joint.fuse_attention import fuse_attention

transformers = pytest.importorskip("transformers")

IDS = torch.arange(40).view(2, 20) % 31 + 3
MASK = torch.ones(2, 20, dtype=torch.long)
MASK[1, 15:] = 0
ENCODED = {"input_ids": IDS, "attention_mask": MASK}
TINY = {"vocab_size": 99, "attn_implementation": "eager", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT_LIKE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
BART_LIKE = {
    f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))
}

MODELS = {
    "Bert": (2, {**TINY, **BERT_LIKE}, ENCODED),
    "DistilBert": (2, {**TINY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, ENCODED),
    "GPT2": (2, {**TINY, "n_embd": 32, "n_layer": 2, "n_head": 4}, {**ENCODED, "use_cache": False}),
    "Llama": (2, {**TINY, **BERT_LIKE, "num_key_value_heads": 2}, {**ENCODED, "use_cache": False}),
    "T5": (
        6,
        {**TINY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
        {**ENCODED, "decoder_input_ids": IDS, "use_cache": False},
    ),
    "ViT": (
        2,
        {**BERT_LIKE, "attn_implementation": "eager", "image_size": 40, "patch_size": 8},
        {"pixel_values": torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))},
    ),
    "Bart": (
        6,
        {**TINY, **BART_LIKE, "d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
        {**ENCODED, "decoder_input_ids": IDS, "use_cache": False},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_layer_is_fused(name):
    count, config, inputs = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**config))
    model = model.eval().requires_grad_(False)
    torch._dynamo.reset()
    recorder = Recorder()
    compiled = eductor.compile(
        model, joint_custom_pre_pass=[fuse_attention], engine="aten", instruments=[recorder], strict=True
    )
    assert torch.allclose(compiled(**inputs)[0], model(**inputs)[0], atol=1e-5)
    assert sum(len(r.matches) for r in recorder.records if r.name == "fuse_attention") == count

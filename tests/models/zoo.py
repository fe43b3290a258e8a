"""Small models of transformers from configs, with random weights: each with a batch and a loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F

TOKENS, CLASSES = 96, 5


def tokens(*shape):
    return torch.randint(2, TOKENS, shape)


def next_token(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=TOKENS, n_positions=32, bos_token_id=0, eos_token_id=1
    )
    return (
        GPT2LMHeadModel(config),
        lambda model, ids: next_token(model(ids, use_cache=False).logits, ids),
        tokens(2, 12),
    )


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=TOKENS,
        max_position_embeddings=32,
        num_labels=CLASSES,
    )
    labels = torch.tensor([1, 4])
    return (
        BertForSequenceClassification(config),
        lambda model, ids: F.cross_entropy(
            model(ids, attention_mask=(ids > 5).long()).logits.float(), labels.to(ids.device)
        ),
        tokens(2, 12),
    )


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=16,
        patch_size=8,
        num_labels=CLASSES,
        hidden_dropout_prob=0.1,
    )
    labels = torch.tensor([1, 4])
    return (
        ViTForImageClassification(config),
        lambda model, x: F.cross_entropy(model(x).logits.float(), labels.to(x.device)),
        torch.randn(2, 3, 16, 16),
    )


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=CLASSES)
    labels = torch.tensor([1, 4])
    return (
        ResNetForImageClassification(config),
        lambda model, x: F.cross_entropy(model(x).logits.float(), labels.to(x.device)),
        torch.randn(2, 3, 32, 32),
    )


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=1,
        num_heads=2,
        vocab_size=TOKENS,
        decoder_start_token_id=0,
        use_cache=False,
    )

    def loss(model, ids):
        return next_token(model(input_ids=ids, decoder_input_ids=ids.flip(1)).logits, ids.flip(1))

    return T5ForConditionalGeneration(config), loss, tokens(2, 12)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=TOKENS,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=1,
    )
    return (
        LlamaForCausalLM(config),
        lambda model, ids: next_token(model(ids, use_cache=False).logits, ids),
        tokens(2, 12),
    )


MODELS = {make.__name__: make for make in (gpt2, bert, vit, resnet, t5, llama)}


def train(name, compile, *, steps=5, device="cpu", dtype=torch.float32, seed=0):
    """Losses, parameters and buffers of a few steps of an optimizer; dropout is on, with the same draws."""
    torch.manual_seed(seed)
    model, loss_of, batch = MODELS[name]()
    model = model.to(device, dtype).train()
    batch = batch.to(device) if batch.dtype == torch.int64 else batch.to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = compile(lambda batch: loss_of(model, batch))
    losses = []
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), model.state_dict()

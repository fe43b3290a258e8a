"""Models of text: decoders, encoders, and both together."""

from __future__ import annotations

from .subject import CLASSES, TOKENS, WIDTH, Subject, classes, labels, next_token, of_transformers, tokens

SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
ALIKE = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": TOKENS,
    "max_position_embeddings": 64,
    **SPECIAL,
}
GROUPED = {**ALIKE, "num_key_value_heads": 2, "attention_dropout": 0.1}


def decoder(architecture, length=12, **config):
    def step(model, ids):
        return next_token(model(ids, use_cache=False).logits, ids)

    return Subject(lambda: of_transformers(architecture, **config), lambda size: (tokens(size, length),), step)


def encoder(architecture, **config):
    """With padding: what is masked must not be seen."""

    def batch(size):
        ids = tokens(size)
        return ids, (ids > 5).long(), labels(size)

    def step(model, ids, mask, target):
        return classes(model(ids, attention_mask=mask).logits, target)

    return Subject(lambda: of_transformers(architecture, num_labels=CLASSES, **config), batch, step)


def encoder_decoder(architecture, **config):
    def step(model, source, target):
        return next_token(model(input_ids=source, decoder_input_ids=target, use_cache=False).logits, target)

    return Subject(
        lambda: of_transformers(architecture, decoder_start_token_id=0, **config),
        lambda size: (tokens(size, 10), tokens(size)),
        step,
    )


DECODERS = {
    "gpt2": decoder("GPT2LMHeadModel", n_layer=2, n_embd=WIDTH, n_head=2, vocab_size=TOKENS, n_positions=64, **SPECIAL),
    "opt": decoder("OPTForCausalLM", **ALIKE, ffn_dim=48, word_embed_proj_dim=WIDTH),
    "gpt_neox": decoder("GPTNeoXForCausalLM", **ALIKE, hidden_dropout=0.1),
    "llama": decoder("LlamaForCausalLM", **GROUPED),
    "falcon": decoder("FalconForCausalLM", **ALIKE, hidden_dropout=0.1, multi_query=True),
    "phi": decoder("PhiForCausalLM", **ALIKE, resid_pdrop=0.1),
    "gemma2": decoder("Gemma2ForCausalLM", **GROUPED, head_dim=8, sliding_window=4),
    "mistral": decoder("MistralForCausalLM", **GROUPED, sliding_window=4),
    "mixtral": decoder("MixtralForCausalLM", **GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": decoder(
        "Qwen2MoeForCausalLM",
        **GROUPED,
        experts_implementation="batched_mm",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=32,
    ),
    "bloom": decoder(
        "BloomForCausalLM", n_layer=2, hidden_size=WIDTH, n_head=4, vocab_size=TOKENS, hidden_dropout=0.1, **SPECIAL
    ),
    "mpt": decoder(
        "MptForCausalLM", n_layers=2, d_model=WIDTH, n_heads=4, expansion_ratio=2, vocab_size=TOKENS, max_seq_len=64
    ),
    "mamba": decoder(
        "MambaForCausalLM", 6, hidden_size=WIDTH, num_hidden_layers=2, state_size=4, vocab_size=TOKENS, **SPECIAL
    ),
}

ENCODERS = {
    "bert": encoder("BertForSequenceClassification", **ALIKE),
    "distilbert": encoder(
        "DistilBertForSequenceClassification",
        n_layers=2,
        dim=WIDTH,
        n_heads=4,
        hidden_dim=48,
        vocab_size=TOKENS,
        **SPECIAL,
    ),
    "electra": encoder("ElectraForSequenceClassification", **ALIKE, embedding_size=16),
    "albert": encoder("AlbertForSequenceClassification", **ALIKE, embedding_size=16),
    "deberta_v2": encoder(
        "DebertaV2ForSequenceClassification",
        **{**ALIKE, "num_hidden_layers": 1},
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=16,
    ),
}

BOTH = {
    "t5": encoder_decoder(
        "T5ForConditionalGeneration",
        d_model=WIDTH,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_decoder_layers=2,
        num_heads=4,
        vocab_size=TOKENS,
        **SPECIAL,
    ),
    "bart": encoder_decoder(
        "BartForConditionalGeneration",
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        vocab_size=TOKENS,
        max_position_embeddings=64,
        forced_eos_token_id=None,
        **SPECIAL,
    ),
}

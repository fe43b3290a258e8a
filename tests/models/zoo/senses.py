"""Models of pictures and of sound."""

from __future__ import annotations

import torch

from .subject import CLASSES, TOKENS, WIDTH, Subject, classes, labels, next_token, of_transformers, tokens

ALIKE = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def pictures(architecture, side=32, **config):
    def step(model, x, target):
        return classes(model(x).logits, target)

    return Subject(
        lambda: of_transformers(architecture, num_labels=CLASSES, **config),
        lambda size: (torch.randn(size, 3, side, side), labels(size)),
        step,
    )


def segformer():
    def step(model, x, target):
        return classes(model(x).logits, target)

    return Subject(
        lambda: of_transformers(
            "SegformerForSemanticSegmentation",
            depths=[1, 1],
            num_encoder_blocks=2,
            hidden_sizes=[8, 16],
            num_attention_heads=[1, 2],
            sr_ratios=[2, 1],
            patch_sizes=[7, 3],
            strides=[4, 2],
            mlp_ratios=[2, 2],
            decoder_hidden_size=16,
            num_labels=CLASSES,
        ),
        lambda size: (torch.randn(size, 3, 32, 32), labels(size, 8, 8)),
        step,
    )


def clip():
    """Two towers, and how well each picture fits each text."""
    text = {
        **ALIKE,
        "num_hidden_layers": 1,
        "vocab_size": TOKENS,
        "max_position_embeddings": 16,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    vision = {**ALIKE, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8}

    def step(model, ids, x):
        logits = model(input_ids=ids, pixel_values=x).logits_per_text
        return classes(logits, torch.arange(len(ids), device=ids.device))[0], logits

    return Subject(
        lambda: of_transformers("CLIPModel", text_config=text, vision_config=vision, projection_dim=16),
        lambda size: (tokens(size, 8), torch.randn(size, 3, 16, 16)),
        step,
    )


def wav2vec2():
    def step(model, sound, target):
        return classes(model(sound).logits, target)

    return Subject(
        lambda: of_transformers(
            "Wav2Vec2ForSequenceClassification",
            **ALIKE,
            conv_dim=[8, 8],
            conv_kernel=[10, 3],
            conv_stride=[5, 2],
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            apply_spec_augment=False,
            layerdrop=0.0,
            num_labels=CLASSES,
        ),
        lambda size: (torch.randn(size, 400), labels(size)),
        step,
    )


def whisper():
    def step(model, sound, ids):
        return next_token(model(input_features=sound, decoder_input_ids=ids, use_cache=False).logits, ids)

    return Subject(
        lambda: of_transformers(
            "WhisperForConditionalGeneration",
            d_model=WIDTH,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=32,
            vocab_size=TOKENS,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=0,
            decoder_start_token_id=0,
            dropout=0.1,
        ),
        lambda size: (torch.randn(size, 8, 32), tokens(size)),
        step,
    )


SENSES = {
    "vit": pictures("ViTForImageClassification", 16, **ALIKE, image_size=16, patch_size=8, hidden_dropout_prob=0.1),
    "resnet": pictures(
        "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    ),
    "convnext": pictures("ConvNextForImageClassification", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "swin": pictures(
        "SwinForImageClassification",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.2,
    ),
    "segformer": segformer(),
    "clip": clip(),
    "wav2vec2": wav2vec2(),
    "whisper": whisper(),
}

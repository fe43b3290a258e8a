"""Layers as models use them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from .comparing import Case, each_call, leaf, plain, program


@program(lines=(1, 3))
def embedding_and_cross_entropy():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 9)

        def forward(self, tokens, labels):
            logits = self.head(self.embed(tokens))
            return F.cross_entropy(logits.view(-1, 9), labels.view(-1), ignore_index=-100), logits

    labels = torch.randint(0, 9, (2, 5))
    labels[0, 0] = -100
    return Case(Model(), (torch.randint(0, 9, (2, 5)), labels))


@program(lines=(1, 3))
def embedding_bag():
    return Case(nn.EmbeddingBag(9, 4, mode="sum"), (torch.randint(0, 9, (7,)), torch.tensor([0, 3])))


@program(lines=(3,))
def layer_norm_and_others():
    return Case(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.RMSNorm(6)), (leaf(3, 4),))


@program(lines=(3, 13), steps=each_call, dynamic_on_inductor=True)
def attention_with_a_mask():
    def fn(q, k, v):
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return Case(fn, calls=tuple(tuple(leaf(1, 2, n, 4) for _ in range(3)) for n in (3, 5)))


@program(lines=(3,))
def multi_head_attention():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)

    return Case(Model(), (leaf(2, 3, 8),))


@program(lines=(3,))
def einsum():
    return Case(lambda x, y: torch.einsum("bij,bjk->bki", x, y), (leaf(2, 3, 4), leaf(2, 4, 5)))


@program(lines=(3,))
def cumulative_sums():
    return Case(lambda x: (x.cumsum(-1), x.cumprod(0), x.logcumsumexp(0)), (leaf(3, 4),))


@program(lines=(3, 4))
def gather_and_index():
    def fn(x, i):
        return x.gather(1, i), x[i[:, 0]], x.index_select(0, i[0]), F.one_hot(i, 3)

    return Case(fn, (leaf(3, 4), torch.randint(0, 3, (3, 2))))


@program(lines=(3,), steps=each_call)
def lstm_cell():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, 4)

        def forward(self, xs):
            h = c = xs.new_zeros(xs.shape[1], 4)
            outs = []
            for x in xs:
                h, c = self.cell(x, (h, c))
                outs.append(h)
            return torch.stack(outs), c

    return Case(Model(), calls=((leaf(2, 2, 3),), (leaf(2, 4, 3),)))


@program(lines=(1, 3))
def weight_norm():
    return Case(parametrizations.weight_norm(nn.Linear(4, 3)), (leaf(2, 4),))


@program(lines=(7, 26), steps=each_call)
def spectral_norm():
    """Its power iteration writes buffers in training."""
    return Case(parametrizations.spectral_norm(nn.Linear(4, 3)), calls=((leaf(2, 4),), (leaf(2, 4),)))


@program(lines=(7, 26))
def spectral_norm_by_hooks():
    return Case(nn.utils.spectral_norm(nn.Linear(4, 3)), (leaf(2, 4),))


@program(lines=(3, 10))
def transformer_layer():
    return Case(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True), (leaf(2, 3, 8),))


@program(lines=(3, 12))
def pooling_and_padding():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool = nn.Conv2d(2, 3, 3), nn.MaxPool2d(2)

        def forward(self, x):
            x = self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect"))
            return self.pool(x), F.avg_pool2d(x, 2), F.adaptive_max_pool2d(x, 2)

    return Case(Model(), (leaf(2, 2, 6, 6),))


@program(lines=(3, 12))
def depthwise_and_grouped_convolutions():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.Hardswish(), nn.Conv2d(4, 6, 1, groups=2))
    return Case(model, (leaf(2, 4, 5, 5),))


@program(lines=(3,))
def losses():
    def fn(x, y):
        return (
            F.mse_loss(x, y),
            F.smooth_l1_loss(x, y),
            F.binary_cross_entropy_with_logits(x, y.sigmoid()),
            F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        )

    return Case(fn, (leaf(3, 4), plain(3, 4)))


@program(lines=(3,))
def activations():
    def fn(x):
        return F.silu(x), F.mish(x), F.elu(x), F.leaky_relu(x), F.softplus(x), F.hardtanh(x), F.glu(x)

    return Case(fn, (leaf(3, 4),))


@program(lines=(3,), exact_on_aten=False)
def linear_algebra():
    def fn(x):
        m = x @ x.t() + 3 * torch.eye(3)
        return torch.linalg.cholesky(m), torch.linalg.solve(m, x), m.logdet()

    return Case(fn, (leaf(3, 4),))


@program(lines=(3, 10, 13), steps=each_call, dynamic_on_inductor=True)
def small_language_model():
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x):
            b, n, w = x.shape
            q, k, v = (t.view(b, n, 2, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).split(w, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, w)
            return x + F.dropout(self.out(y), 0.1, self.training)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(13, 8), nn.Embedding(8, 8)
            self.block, self.head = Block(8), nn.Linear(8, 13, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
            return self.head(self.block(x))

    return Case(Model(), calls=tuple((torch.randint(0, 13, (b, n)),) for b, n in ((2, 4), (3, 5))))


@program(lines=(3,))
def gru_by_hand_in_a_loop():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, xs, h):
            for x in xs.unbind(0):
                h = self.cell(x, h)
            return h

    return Case(Model(), (leaf(3, 2, 3), leaf(2, 4)))

"""Generation with a static cache and flex_attention, compiled: `python generating_program.py`.

Each line that it prints is a name and a hash of a result.
"""

import hashlib
import sys

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch.nn.attention.flex_attention import flex_attention

LAYERS, HEADS, KV_HEADS, HEAD, HIDDEN, LENGTH, WORDS = 4, 8, 4, 64, 512, 256, 1000


def normed(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def turned(x, cos, sin):
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat((-other, one), -1) * sin


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        make = torch.nn.Linear
        self.q, self.o = (make(HIDDEN, HEADS * HEAD, bias=False) for _ in range(2))
        self.k, self.v = (make(HIDDEN, KV_HEADS * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (make(HIDDEN, 2 * HIDDEN, bias=False) for _ in range(2))
        self.down = make(2 * HIDDEN, HIDDEN, bias=False)
        self.one, self.other = (torch.nn.Parameter(torch.ones(HIDDEN)) for _ in range(2))

    def forward(self, x, angles, at, cache, mask):
        batch, count, _ = x.shape
        y = normed(x, self.one)
        heads = [
            m(y).view(batch, count, -1, HEAD).transpose(1, 2) for m in (self.q, self.k, self.v)
        ]
        query, key = (turned(one, *angles) for one in heads[:2])
        for kept, new in zip(cache, (key, heads[2]), strict=True):
            kept.index_copy_(2, at, new)
        key, value = (kept.repeat_interleave(HEADS // KV_HEADS, 1) for kept in cache)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(batch, count, -1))
        y = normed(x, self.other)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        frequencies = 1e4 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("frequencies", frequencies.float())

    def forward(self, words, at, caches):
        x = self.words(words)
        angles = torch.outer(at.float(), self.frequencies).repeat(1, 2)
        angles = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = (torch.arange(LENGTH, device=x.device) <= at[:, None])[None, None]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, angles, at, cache, mask)
        return (x[:, -1] @ self.words.weight.t()).argmax(-1, keepdim=True)


@torch.no_grad()
def generated(model, prompt, count):
    """As the generate() of transformers does: the prompt as it is, each word compiled."""
    caches = [
        tuple(torch.zeros(1, KV_HEADS, LENGTH, HEAD, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(LAYERS)
    ]
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    words = [model(prompt, torch.arange(prompt.shape[1]), caches)]
    for at in range(prompt.shape[1], prompt.shape[1] + count):
        torch.compiler.cudagraph_mark_step_begin()
        words.append(step(words[-1].clone(), torch.tensor([at]), caches).clone())
    return torch.cat(words, 1)


def relative(score, _batch, _head, query, key):
    return score + (query - key)


def capped(score, _batch, _head, _query, _key):
    return 20 * torch.tanh(score / 20)


def attended(query, score):
    return flex_attention(query, query, query, score_mod=score)


def main():
    torch.manual_seed(0)
    model = Model().to(torch.bfloat16).eval()
    for size in (7, 19):
        yield f"generated {size}", generated(model, torch.randint(WORDS, (1, size)), 8)
    query = torch.randn(1, 4, 512, 64, dtype=torch.bfloat16)
    for score in (relative, capped):
        yield score.__name__, torch.compile(attended, fullgraph=True)(query, score)


if __name__ == "__main__":
    torch.set_default_device("cuda")
    for name, result in main():
        digest = hashlib.sha256(result.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
        sys.stdout.write(f"{name} {digest}\n")

"""Small torch modules for the converter, each with one habit that a conversion must notice."""

import torch


class Scores(torch.nn.Module):
    """[batch, frames, 4] and [batch, 4] to [batch, 3]: two inputs, a free axis that nothing masks."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, frames, extra):
        return self.inner(frames.mean(1) + extra)


class Tokens(torch.nn.Module):
    """Ids and a mask to one vector a token, padding left out."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 6)

    def forward(self, ids, mask):
        real = mask.unsqueeze(-1)
        rows = self.table(ids) * real
        return rows + rows.sum(1, keepdim=True) / real.sum(1, keepdim=True)


class Scalars(torch.nn.Module):
    """One number an item, in and out: [batch] to [batch]."""

    def forward(self, x):
        return x * 2 + 1


class OneNumber(torch.nn.Module):
    """One number for the whole batch: a scalar, shape []."""

    def forward(self, x):
        return x.sum()


class WithScale(torch.nn.Module):
    """A scalar, shape [], beside a batch."""

    def forward(self, x, scale):
        return x * scale


class Mixed(torch.nn.Module):
    """One input with a batch, one without."""

    def forward(self, x, weights):
        return x @ weights


class Loops(torch.nn.Module):
    """Python walks over the rows: an export unrolls them."""

    def forward(self, x):
        return torch.stack([row.cumsum(0) for row in x])


class FixedFour(torch.nn.Module):
    """Runs with a batch of four and no other."""

    def forward(self, x):
        return x + torch.ones(4, 3).reshape(4, 3)[: x.shape[0] * 0 + 4]


class Branches(torch.nn.Module):
    """What it does depends on what it is given."""

    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class Several(torch.nn.Module):
    """A dictionary of two tensors."""

    def forward(self, x):
        return {"double": x * 2, "half": x / 2}


def no_module():
    return "a string"


def breaks():
    raise RuntimeError("no weights\nin sight")


class Leaves(torch.nn.Module):
    """Ends the program when it is run."""

    def forward(self, x):
        raise SystemExit(0)


class Talks(torch.nn.Module):
    """Prints when it is run."""

    def forward(self, x):
        print("said by the model")
        return x * 2


class Lost(torch.nn.Module):
    """Answers with what is no number."""

    def forward(self, x):
        return x * float("nan")


class _Sums(torch.nn.Module):
    SCALE = 1.0

    def __init__(self):
        super().__init__()
        weights = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        self.weights = torch.nn.Parameter(weights * self.SCALE)

    def forward(self, x):
        return x @ self.weights


class Rare(_Sums):
    """Probabilities about a ten-thousandth."""

    def forward(self, x):
        return torch.sigmoid(super().forward(x) * 0.1 - 9)


class Classes(_Sums):
    """Five thousand whole numbers a row."""

    def forward(self, x):
        return super().forward(x).repeat(1, 625).round().long()


class Masked(_Sums):
    """The last class is never allowed."""

    def forward(self, x):
        return torch.nn.functional.pad(super().forward(x), (0, 1), value=float("-inf"))


class OffByOne(_Sums):
    """Whole numbers, each one too large in what is exported."""

    def forward(self, x):
        return (super().forward(x) * 2000).long() + (1 if torch.compiler.is_compiling() else 0)


class TwoScales(_Sums):
    """Hundreds, and beside them hundredths that are twice as large in what is exported."""

    def forward(self, x):
        small = super().forward(x) * (0.002 if torch.compiler.is_compiling() else 0.001)
        return torch.cat([super().forward(x) * 10, small], -1)


class Counts(_Sums):
    """Answers otherwise each time."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) + self.calls


class Random(_Sums):
    def forward(self, x):
        return super().forward(x) + torch.rand(())


class Places(torch.nn.Module):
    """Whole numbers that FP32 has no digits for."""

    def forward(self, x):
        return (x[:, :1] * 0).long() + 2**24 + 1


class Complex(_Sums):
    def forward(self, x):
        return torch.complex(super().forward(x), super().forward(x))


class Empty(_Sums):
    """No numbers at all."""

    def forward(self, x):
        return super().forward(x)[:, :0]


class Brief(_Sums):
    """BF16 answers."""

    def forward(self, x):
        return super().forward(x).bfloat16()


class Same(torch.nn.Module):
    def forward(self, x):
        return x


class Large(_Sums):
    """Answers in the millions."""

    SCALE = 1e6


class Tiny(_Sums):
    """Answers of a millionth."""

    SCALE = 1e-7


class Barred(_Sums):
    """Scores, the last class of which is not allowed: a mark that is far larger than any score."""

    def forward(self, x):
        barred = torch.arange(8, device=x.device) == 7
        return super().forward(x).masked_fill(barred, -1e9)


class Nothing(torch.nn.Module):
    """Zeros, as a rectifier gives that nothing reaches."""

    def forward(self, x):
        return torch.relu(-torch.abs(x))


class Found(torch.nn.Module):
    """As many rows as there are values that are not zero."""

    def forward(self, x):
        return torch.nonzero(x)


class Says(torch.nn.Module):
    """A text, which is a sequence too."""

    def forward(self, x):
        return "hello"


class One(torch.nn.Module):
    """A dictionary of one tensor."""

    def forward(self, x):
        return {"double": x * 2}


class Stopped(torch.nn.Module):
    """Somebody presses Ctrl-C while it runs."""

    def forward(self, x):
        raise KeyboardInterrupt

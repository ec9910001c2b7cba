"""docs/stacks.md: what it writes beside other packages runs, where they are installed."""

import ast
import copy
import pathlib
import re

import pytest
import torch

import torch_reduce
from support import assert_same_bits
from test_pages import blocks, text_of

PAGE = "docs/stacks.md"
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TRIED = {"transformers' Trainer", "transformers' experts", "torch_geometric", "TRL"}


def section(title):
    """The text below a heading."""
    return re.split(r"^## ", text_of(PAGE).partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def run(title, **names):
    """Runs the code of a section, and returns what it defines."""
    (code,) = blocks(section(title), "py")
    names |= {"torch": torch, "torch_reduce": torch_reduce}
    exec(compile(code, f"{PAGE}, {title}", "exec"), names)
    return names


def test_status():
    """The table says of each section whether it is run below; all code can be read."""
    rows = re.findall(r"^\| \[(.*?)\]\(#.*?\) \|.*\| (.*?) \|$", text_of(PAGE), re.MULTILINE)
    assert {title for title, status in rows if status.startswith("tried with")} == TRIED
    assert all(status == "not run here" for title, status in rows if title not in TRIED)
    assert [title for title, _ in rows] == re.findall(r"^## (.*)$", text_of(PAGE), re.MULTILINE)
    for title, _ in rows:
        text = section(title)
        assert all(word in text for word in ("**The same bits", "**Other orders**", "**Cost**")), title
        (code,) = blocks(text, "py")
        ast.parse(code)


def small_mixtral(transformers):
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)
    config = transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=3, num_key_value_heads=2)
    return transformers.MixtralForCausalLM(config).eval()


def test_experts():
    """The model computes what it does without, and experts add a token's rows in the order of its choices."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, tokens = small_mixtral(transformers), torch.randint(50, (3, 12))
    model.set_experts_implementation("eager")
    wanted = model(tokens, labels=tokens)
    grads = torch.autograd.grad(wanted.loss, list(model.parameters()))
    run("transformers' experts", model=model)
    found = model(tokens, labels=tokens)
    torch.testing.assert_close(found.logits, wanted.logits)
    for one, other in zip(torch.autograd.grad(found.loss, list(model.parameters())), grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)

    experts = next(module for module in model.modules() if hasattr(module, "gate_up_proj"))
    x, index = torch.randn(9, 32), torch.stack([torch.randperm(4)[:3] for _ in range(9)])
    weights = torch.rand(9, 3)
    absent = torch.where(index == 2, 4, index)  # as with expert parallelism: expert 2 is on another rank
    with torch.no_grad():
        rows = [experts(x, index[:, j : j + 1], torch.ones(9, 1)) for j in range(3)]
        here = experts(x, absent, weights)
    for t in range(9):
        kept = [j for j in range(3) if index[t, j] != 2]
        each = torch.stack([rows[j][t] for j in kept])
        torch.testing.assert_close(here[t], (each * weights[t, kept, None]).sum(0), rtol=1e-5, atol=1e-6)


def small_llama(transformers):
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=50
    )
    return transformers.LlamaForCausalLM(config)


def test_trainer(tmp_path):
    """Two trainings have the same bits, and others than torch's own sums give."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    tokens = torch.randint(50, (16, 12), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in tokens]

    def train(ours):
        transformers.set_seed(0)
        last = dict(report_to=[], logging_steps=1, save_strategy="no", disable_tqdm=True)
        arguments = transformers.TrainingArguments(str(tmp_path), max_steps=4, use_cpu=True, **last)
        trainer = transformers.Trainer(model=small_llama(transformers), args=arguments, train_dataset=rows)
        if ours:
            run("transformers' Trainer", trainer=trainer, device="cpu")
        else:
            trainer.train()
        return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])

    first, second, torchs = train(True), train(True), train(False)
    assert_same_bits(first, second)
    torch.testing.assert_close(first, torchs)
    assert not first.equal(torchs)


def test_geometric(monkeypatch):
    """A model's own layers make no messages; another layer is refused."""
    nn = pytest.importorskip("torch_geometric.nn")
    monkeypatch.syspath_prepend(EXAMPLES)
    model, edges = nn.GraphSAGE(8, 16, num_layers=2, out_channels=4), torch.randint(0, 30, (2, 90))
    x = torch.randn(30, 8)
    wanted = model(x, edges)
    names = run("torch_geometric", model=model)
    torch.testing.assert_close(model(x, edges), wanted)
    assert all(isinstance(layer.propagate, names["Propagate"]) for layer in model.convs)
    with pytest.raises(TypeError, match="not of EdgeConv"):
        names["Propagate"](nn.EdgeConv(torch.nn.Linear(16, 4)), names["gathered"])


def test_trl(monkeypatch):
    """The head has the results of TRL's own; the model gives logits as before."""
    transformers = pytest.importorskip("transformers")
    utils = pytest.importorskip("trl.trainer.utils")
    grpo = pytest.importorskip("trl.trainer.grpo_trainer")
    if not hasattr(grpo, "add_fused_lm_head"):
        pytest.skip("this TRL has no head for log-probabilities")
    monkeypatch.setattr(grpo, "add_fused_lm_head", utils.add_fused_lm_head)  # undone at the end
    torch.manual_seed(0)
    theirs = small_llama(transformers)
    ours, tokens = copy.deepcopy(theirs), torch.randint(50, (3, 9))
    labels = tokens.clone()
    labels[0, :5] = -100
    run("TRL")
    grpo.add_fused_lm_head(ours, 0.7)
    utils.add_fused_lm_head(theirs, 0.7, outputs=("log_probs", "entropy"))
    found, wanted = (one(input_ids=tokens, labels=labels, fused_lm_head=True) for one in (ours, theirs))
    for name in ("log_probs", "entropy", "loss"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-5)
    assert found["label_mask"].equal(wanted["label_mask"])
    assert_same_bits(ours(tokens).logits.detach(), theirs(tokens).logits.detach())

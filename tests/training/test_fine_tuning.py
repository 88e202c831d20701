"""A real example: a small language model learns the Python reference on two ranks of our launcher, three times.

With our Accelerator, with upstream's, and with Transformers' Trainer.
"""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from accel_nb import notebook_launcher

pytestmark = [
    pytest.mark.timeout(300),
    # seen with the newest transformers on torch 2.6.0, in all three
    pytest.mark.skipif(torch.__version__ < "2.7", reason="this model crashes in torch's native code"),
]

BLOCK_BYTES = 64
NUM_BLOCKS = 192
"""Of which the last sixth is held back."""


def blocks() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Text of the language reference that Python ships, byte by byte: to train on, and to test on."""
    text = "".join(topics[name] for name in sorted(topics)).encode()[: NUM_BLOCKS * BLOCK_BYTES]
    ids = torch.tensor(list(text)).view(NUM_BLOCKS, BLOCK_BYTES)
    samples = [{"input_ids": row, "labels": row.clone()} for row in ids]
    held_back = NUM_BLOCKS // 6
    return samples[:-held_back], samples[-held_back:]


def make_model() -> Any:  # noqa: ANN401  Transformers'
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=BLOCK_BYTES, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def train(library: str, epochs: int = 4) -> dict[str, Any]:
    """In a rank: the loop of Accelerate's examples, with `library`'s Accelerator."""
    from transformers import get_linear_schedule_with_warmup

    accelerator = import_module(library).Accelerator(gradient_accumulation_steps=2)
    train_set, test_set = blocks()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    shuffled = torch.Generator().manual_seed(0)
    train_loader: Any = DataLoader(train_set, batch_size=8, shuffle=True, generator=shuffled)  # type: ignore[arg-type]
    test_loader: Any = DataLoader(test_set, batch_size=6)  # type: ignore[arg-type]
    num_steps = epochs * len(train_loader)
    schedule: Any = get_linear_schedule_with_warmup(optimizer, 4, num_steps)  # type: ignore[no-untyped-call]
    model, optimizer, train_loader, test_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, test_loader, schedule
    )

    losses, rates = [], []
    for _ in range(epochs):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
            rates.append(schedule.get_last_lr()[0])

    model.eval()
    of_samples = []
    for batch in test_loader:
        with torch.no_grad():
            logits = model(**batch).logits[:, :-1]
        by_byte = torch.nn.functional.cross_entropy(logits.mT, batch["labels"][:, 1:], reduction="none")
        of_samples += accelerator.gather_for_metrics(by_byte.mean(dim=1)).tolist()
    weights = accelerator.unwrap_model(model).state_dict()
    return {"losses": losses, "rates": rates, "test losses": of_samples, "weights": weights}


def train_with_trainer(folder: str) -> list[float]:
    """In a rank: the same model and data, left to Transformers."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=4,
        learning_rate=3e-3, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    train_set, _ = blocks()
    trainer = Trainer(model=make_model(), args=arguments, train_dataset=train_set)
    trainer.train()
    assert trainer.args.world_size == 2
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def falls(losses: list[float]) -> bool:
    """From about chance, over 256 bytes, to well below."""
    quarter = len(losses) // 4
    return losses[0] > math.log(256) - 0.5 and sum(losses[-quarter:]) / quarter < losses[0] - 1


@pytest.mark.slow
def test_our_accelerator_and_upstreams_fine_tune_to_the_same_losses() -> None:
    ours = notebook_launcher(train, ("accel_nb",), num_processes=2, device="cpu")
    theirs = notebook_launcher(train, ("accelerate",), num_processes=2, device="cpu")

    for own, their in zip(ours, theirs, strict=True):
        assert own["losses"] == pytest.approx(their["losses"], abs=1e-5)
        assert own["rates"] == pytest.approx(their["rates"])
        assert own["test losses"] == pytest.approx(their["test losses"], abs=1e-5)
        assert len(own["test losses"]) == NUM_BLOCKS // 6
        for name, weight in own["weights"].items():
            torch.testing.assert_close(weight, their["weights"][name], atol=1e-5, rtol=1e-4)
    assert falls(ours.main["losses"])
    assert ours.main["test losses"] == ours[1]["test losses"]


@pytest.mark.slow
def test_transformers_trainer_fine_tunes_the_same_model(tmp_path: Path) -> None:
    results = notebook_launcher(train_with_trainer, (str(tmp_path),), num_processes=2, device="cpu")

    assert falls(results.main)

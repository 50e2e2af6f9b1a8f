"""The loop that most people write: DataLoader, torchvision transforms, SimVQ from a library, ``.item()`` each step.

Model, data, optimizer and losses are those of a contract. As a Hydra application it trains one job:

    python -m benchmarks.baseline --multirun data=FOLDER epochs=2,5,10 seed=101,102 multiplier=1.0,10.0
"""

from pathlib import Path

import hydra
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from vector_quantize_pytorch import SimVQ

from runner import config
from vqkit.formats import dataset


class Images(Dataset):
    """As torchvision's CIFAR10: an array of pixels, a PIL image and a transform for each item."""

    def __init__(self, images):
        self.images = np.ascontiguousarray(images)
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index]))


class Model(nn.Module):
    """The contract's architecture around ``vector_quantize_pytorch.SimVQ``."""

    def __init__(self, contract):
        super().__init__()
        h, D = contract.hidden, contract.latent_dim
        self.encoder = nn.Sequential(
            nn.Conv2d(3, h, 4, 2, 1), nn.ReLU(), nn.Conv2d(h, h, 4, 2, 1), nn.ReLU(), nn.Conv2d(h, D, 3, 1, 1)
        )
        self.quantizer = SimVQ(
            dim=D,
            codebook_size=contract.codes,
            channel_first=True,
            rotation_trick=False,
            input_to_quantize_commit_loss_weight=contract.baseline["commitment_weight"],
            codebook_transform=nn.Linear(D, D),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(D, h, 3, 1, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(h, h, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(h, 3, 4, 2, 1),
        )

    def forward(self, x):
        quantized, indices, loss = self.quantizer(self.encoder(x))
        return self.decoder(quantized), indices, loss


class Loop:
    """Data, model and optimizer; ``epoch`` trains one and returns the mean loss, ``perplexity`` evaluates."""

    def __init__(self, contract, images, device="cpu", seed=101, multiplier=1.0, workers=0):
        torch.manual_seed(seed)
        training = contract.training
        self.device, self.codes = device, contract.codes
        self.model = Model(contract).to(device)
        basis = list(self.model.quantizer.code_transform.parameters())
        others = [p for p in self.model.parameters() if p.requires_grad and all(p is not q for q in basis)]
        rate = training["learning_rate"]
        groups = [{"params": others, "lr": rate}, {"params": basis, "lr": multiplier * rate}]
        self.optimizer = torch.optim.Adam(groups, betas=tuple(training["betas"]), eps=training["epsilon"])
        options = {"batch_size": training["batch_size"], "num_workers": workers, "persistent_workers": workers > 0}
        self.loader = DataLoader(Images(images["train"]), shuffle=True, drop_last=True, **options)
        self.evaluation = DataLoader(Images(images["evaluation"]), **options)

    def epoch(self):
        total = 0.0
        for x in self.loader:
            x = x.to(self.device)
            reconstruction, _, quantizer_loss = self.model(x)
            loss = F.mse_loss(reconstruction, x) + quantizer_loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.loader)

    @torch.no_grad()
    def perplexity(self):
        counts = torch.zeros(self.codes)
        for x in self.evaluation:
            _, indices, _ = self.model(x.to(self.device))
            counts += torch.bincount(indices.flatten().cpu(), minlength=self.codes)
        p = counts[counts > 0] / counts.sum()
        return float((-(p * p.log()).sum()).exp())


@hydra.main(version_base="1.3", config_path=None, config_name="baseline")
def main(options):
    contract = config.locked_contract("quick-v1")
    images = dataset.open_dataset(Path(options.data), dataset.contract_counts(contract)).images
    loop = Loop(contract, images, options.device, options.seed, options.multiplier)
    for _ in range(options.epochs):
        loop.epoch()
    print(f"perplexity {loop.perplexity():.2f} after {options.epochs} epochs")


if __name__ == "__main__":
    from hydra.core.config_store import ConfigStore

    defaults = {"data": "???", "epochs": 10, "seed": 101, "multiplier": 1.0, "device": "cpu"}
    ConfigStore.instance().store(name="baseline", node=defaults)
    main()

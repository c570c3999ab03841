"""A small network that learns the sum of its inputs' digits: what a side task in PyTorch needs, on any device."""

import torch
from freeride_plugin import Param, SideTask


class TinyNet(SideTask):
    "Trains a small network on numbers of its own making."

    batch = Param(64, "samples a step", (1, 65536))

    def CreateSideTask(self):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def InitSideTask(self):
        self.model.to(self.torch_device)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.RunNextStep()  # the first step is the longest: better here than in a bubble

    def RunNextStep(self):
        inputs = torch.rand(self.batch, 8, device=self.torch_device)
        loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        self.metric("loss", loss.item())  # waits for the GPU

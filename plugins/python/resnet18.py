"""ResNet18 training with torchvision. freeride-ctl load ./resnet18.py --stage 3 --python ~/venv/bin/python"""

import torch
from freeride_plugin import Param, SideTask
from torchvision.models import resnet18


class ResNet18(SideTask):
    "Trains torchvision's ResNet18 on synthetic images."

    batch = Param(64, "images a step", (1, 4096))
    image = Param(224, "edge of an image, pixels", (32, 1024))

    def CreateSideTask(self):
        torch.manual_seed(1)
        self.model = resnet18()
        self.loss = torch.nn.CrossEntropyLoss()

    def InitSideTask(self):
        device = self.torch_device
        self.model.to(device)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.images = torch.rand(self.batch, 3, self.image, self.image, device=device)
        self.labels = torch.randint(0, 1000, (self.batch,), device=device)

    def RunNextStep(self):
        self.sgd.zero_grad()
        loss = self.loss(self.model(self.images), self.labels)
        loss.backward()
        self.sgd.step()
        self.metric("loss", loss.item())  # waits for the GPU

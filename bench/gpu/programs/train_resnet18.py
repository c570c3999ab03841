"""torchvision's ResNet18 on random images, as one writes it: nothing here knows of bubbles. Prints "steps N"."""

import sys

import torch
import torchvision

device = torch.device("cuda")
model = torchvision.models.resnet18().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()
images = torch.randn(64, 3, 224, 224, device=device)
labels = torch.randint(0, 1000, (64,), device=device)
steps = 0
while len(sys.argv) < 2 or steps < int(sys.argv[1]):
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    if steps % 5 == 0:
        loss.item()
        print("steps", steps, flush=True)

"""Writes lstm_lm.json: what PyTorch's own modules give for a small language model with fixed weights.

    python3 services/worker/compute/testing/make_lstm_lm.py > services/worker/compute/testing/lstm_lm.json

Needs the Python package torch, of any version: it was made with 2.x. Two batches of two streams: the second begins with the state
that the first ended with. Each has the losses of its samples, summed (a sample's loss is the mean over its tokens), and the gradients
of that sum.
"""
import json

import torch

VOCABULARY, EMBEDDING, HIDDEN, LENGTH = 7, 3, 4, 5


class LanguageModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, EMBEDDING)
        self.lstm = torch.nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        self.fc = torch.nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens, state):
        output, state = self.lstm(self.embedding(tokens), state)
        return self.fc(output), state


def main():
    torch.manual_seed(1)
    model = LanguageModel().double()
    for value in model.parameters():
        # Numbers that float32 represents exactly and that are short as text.
        value.data = torch.round(torch.randn(value.shape) * 64) / 128
        value.data = value.data.double()
    text = torch.randint(0, VOCABULARY, (2, 2 * LENGTH + 1))
    made = {
        'dimensions': {'vocabulary': VOCABULARY, 'embedding': EMBEDDING, 'hidden': HIDDEN},
        'length': LENGTH,
        'tensors': [{'name': name, 'shape': list(value.shape), 'values': value.flatten().tolist()}
                    for name, value in model.state_dict().items()],
        'batches': [],
    }
    state = (torch.zeros(1, 2, HIDDEN).double(), torch.zeros(1, 2, HIDDEN).double())
    for begin in (0, LENGTH):
        tokens, labels = text[:, begin:begin + LENGTH], text[:, begin + 1:begin + LENGTH + 1]
        output, state = model(tokens, tuple(part.detach() for part in state))
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten(), reduction='sum') / LENGTH
        model.zero_grad()
        loss.backward()
        made['batches'].append({
            'tokens': tokens.flatten().tolist(), 'labels': labels.flatten().tolist(), 'loss': round(loss.item(), 9),
            'gradients': [[round(number, 9) for number in value.grad.flatten().tolist()] for value in model.parameters()],
        })
    print('{\n' + ',\n'.join(f'"{key}": {json.dumps(value)}' for key, value in made.items()) + '\n}')


if __name__ == '__main__':
    main()

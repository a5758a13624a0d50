"""Writes the data of two examples that no Debian package has: `make_data.py DIRECTORY`.

adult/train.csv and adult/test.csv are for adult-csv.yaml: generated people, with the columns of the UCI Adult census data.
net.pt is for torchscript.yaml: a small network as a TorchScript file. torchscript.yaml shows how PyTorch writes such a file;
this script writes it itself, because PyTorch for Python is not among the packages that Sluice needs. The output is always the
same, byte for byte.
"""
import array
import csv
import math
import pathlib
import random
import sys
import zipfile

WORKCLASSES = ("Private", "Self-emp", "Local-gov", "State-gov", "Federal-gov")
EDUCATIONS = {"Some-school": 7, "HS-grad": 9, "Some-college": 10, "Bachelors": 13, "Masters": 14, "Doctorate": 16}
STATUSES = ("Married", "Never-married", "Divorced", "Widowed")
OCCUPATIONS = ("Craft-repair", "Sales", "Adm-clerical", "Exec-managerial", "Prof-specialty", "Other-service")
RELATIONSHIPS = ("Husband", "Wife", "Own-child", "Not-in-family", "Unmarried")
RACES = ("A", "B", "C")
SEXES = ("Female", "Male")
COUNTRIES = ("United-States", "Mexico", "Philippines", "Germany", "Canada")
COLUMNS = ("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex", "capital-gain",
           "capital-loss", "hours-per-week", "native-country", "income-per-year")


def person(chance):
    age = chance.randint(17, 80)
    education = chance.choice(tuple(EDUCATIONS))
    status, occupation = chance.choice(STATUSES), chance.choice(OCCUPATIONS)
    hours = min(max(round(chance.gauss(40, 10)), 1), 99)
    gain = chance.choice((0,) * 9 + (7298,))
    score = (0.5 * (EDUCATIONS[education] - 10) + 0.05 * (hours - 40) + 0.03 * (age - 40) + 2.5 * (status == "Married") +
             1.5 * (occupation in ("Exec-managerial", "Prof-specialty")) + 3 * (gain > 0) - 3)
    income = ">50K" if chance.random() < 1 / (1 + math.exp(-1.5 * score)) else "<=50K"
    return (age, chance.choice(WORKCLASSES), chance.randint(20000, 400000), education, EDUCATIONS[education], status, occupation,
            chance.choice(RELATIONSHIPS), chance.choice(RACES), chance.choice(SEXES), gain, 0, hours, chance.choice(COUNTRIES), income)


def write_people(path, count, chance):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(person(chance) for _ in range(count))


CODE = """class Linear(Module):
  __parameters__ = ["weight", "bias", ]
  __buffers__ = []
  weight : Tensor
  bias : Tensor
  training : bool
  def forward(self: __torch__.Linear,
    input: Tensor) -> Tensor:
    return torch.linear(input, self.weight, self.bias)
class Net(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  hidden : __torch__.Linear
  output : __torch__.Linear
  def forward(self: __torch__.Net,
    images: Tensor) -> Tensor:
    hidden = (self.hidden).forward(torch.flatten(images, 1), )
    return (self.output).forward(torch.relu(hidden), )
"""


class Archive:
    """A TorchScript file: a ZIP archive with the code, the module's attributes as a pickle, and the tensors' bytes."""

    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)
        self.tensors = 0

    def write(self, name, content):
        self.zip.writestr(zipfile.ZipInfo(f"net/{name}"), content)

    @staticmethod
    def text(value):
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    @staticmethod
    def integers(values):
        return b"(" + b"".join(b"J" + value.to_bytes(4, "little") for value in values) + b"t"

    def tensor(self, shape, chance):
        """The pickle of a tensor, whose bytes become an entry of their own."""
        bound = 1 / math.sqrt(shape[-1])
        values = array.array("f", (chance.uniform(-bound, bound) for _ in range(math.prod(shape))))
        if sys.byteorder == "big":
            values.byteswap()
        key = str(self.tensors)
        self.tensors += 1
        self.write(f"data/{key}", values.tobytes())
        storage = (b"(" + self.text("storage") + b"ctorch\nFloatStorage\n" + self.text(key) + self.text("cpu") + b"J" +
                   len(values).to_bytes(4, "little") + b"tQ")
        strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
        return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + self.integers(shape) + self.integers(strides) + b"\x88" +
                b"ccollections\nOrderedDict\n)RtR")

    def module(self, kind, attributes):
        items = b"".join(self.text(name) + value for name, value in attributes)
        return f"c__torch__\n{kind}\n".encode() + b")\x81}(" + items + b"ub"


def write_net(path, chance):
    archive = Archive(path)

    def linear(inputs, outputs):
        return archive.module("Linear", [("weight", archive.tensor((outputs, inputs), chance)), ("bias", archive.tensor((outputs,), chance)),
                                         ("training", b"\x88")])

    net = archive.module("Net", [("training", b"\x88"), ("hidden", linear(784, 128)), ("output", linear(128, 10))])
    archive.write("data.pkl", b"\x80\x02" + net + b".")
    archive.write("code/__torch__.py", CODE)
    archive.write("constants.pkl", b"\x80\x02).")
    archive.write("version", "3\n")
    archive.zip.close()


def main():
    directory = pathlib.Path(sys.argv[1])
    chance = random.Random(1)
    write_people(directory / "adult" / "train.csv", 6000, chance)
    write_people(directory / "adult" / "test.csv", 2000, chance)
    write_net(directory / "net.pt", chance)


if __name__ == "__main__":
    main()

"""A trainer snapshot of Chainer becomes a file for PyTorch's loader: the base install only, and no Chainer.

Names and values stay what they are. What a layer's name and axes mean to another framework is another step.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import ckptfmt

DATA = Path(__file__).resolve().parent / "data"


def main() -> None:
    """Look at the snapshot, take the model out of it, and go back to what Chainer reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "snapshot_iter_3"
        shutil.copyfile(DATA / "snapshot_iter_3", source)

        with ckptfmt.read(source) as snapshot:
            print(f"{source.name} is {snapshot.format}, of iteration {snapshot.step}")
            model = snapshot.at(("updater", "model:main"))
            for path, tensor in ckptfmt.Checkpoint(model, format=snapshot.format).tensors().items():
                print(f"  {path:28} {tensor}")

            # The model alone, as torch.load(weights_only=True) takes it.
            findings = ckptfmt.write(model, folder / "model.pt")
            lost = [finding for finding in findings if finding.severity is ckptfmt.Severity.LOSS]
            print("lost on the way to model.pt:", len(lost))

        # All of it: optimizer, iterator and log too. Each step is read again and compared.
        report = ckptfmt.convert(source, folder / "native")
        print("the native checkpoint has the same root:", report.same_root)
        report = ckptfmt.convert(folder / "native", folder / "snapshot_again", to="chainer-npz")
        print("so has the snapshot that is written from it:", report.same_root)
        compared = ckptfmt.compare(source, folder / "snapshot_again")
        print("nothing differs:", compared.equal)


if __name__ == "__main__":
    main()

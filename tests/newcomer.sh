#!/usr/bin/env bash
# A newcomer's first ten minutes. Runs in an empty folder, with the installed package first on the PATH: newcomer.sh REPOSITORY
set -euo pipefail
repository=$1

echo "== is it installed?"
curriculoss --version
curriculoss doctor

echo "== the README's Python"
sed -n '/^```python$/,/^```$/p' "$repository/README.md" | grep -v '^```' > readme.py
python readme.py

echo "== own data: three groups of points, some labels wrong"
python - <<'PYTHON'
import numpy as np

chance = np.random.default_rng(0)
truth = chance.integers(3, size=360)
x = chance.normal(size=(360, 8)) + 3 * np.eye(3, 8)[truth]
y = np.where(chance.random(360) < 0.2, chance.integers(3, size=360), truth)
np.savez("mine.npz", x=x[:300], y=y[:300])
np.savez("new.npz", x=x[300:])
PYTHON
curriculoss data check mine.npz
curriculoss train --data mine.npz --loss auto --epochs 3 --out run
curriculoss predict run new.npz --out predictions.csv
curriculoss export run model.pt2
curriculoss report run --out report.html
curriculoss audit mine.npz --epochs 3 --out audit
printf 'index,path,decision,label\n0,,drop,\n' > decisions.csv
curriculoss clean mine.npz --decisions decisions.csv --out cleaned

echo "== the README's questions"
curriculoss losses
curriculoss weight mae --num-classes 100
curriculoss explore --run run --out explorer.html

"""scikit-learn: an estimator for noisy labels in a pipeline, its settings searched, and the labels to look at first."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from curriculoss import GCE
from curriculoss.integrations.sklearn import RobustClassifier

train, test, clean, true = train_test_split(*load_digits(return_X_y=True), random_state=0)
rng = np.random.default_rng(0)
wrong = rng.random(len(clean)) < 0.4
given = np.where(wrong, (clean + rng.integers(1, 10, len(clean))) % 10, clean)

model = make_pipeline(StandardScaler(), RobustClassifier(epochs=20, random_state=0))
search = GridSearchCV(model, {"robustclassifier__loss": ["mae", GCE(0.3)]}, cv=2).fit(train, given)
print("chosen by noisy labels:", search.best_params_)
margins = search.best_estimator_[-1].margins_
suspects = margins.argsort()[: wrong.sum()]  # the lowest first
print(
    f"accuracy {search.score(test, true):.3f}; of the {len(suspects)} suspects {wrong[suspects].mean():.3f} are wrong"
)

"""rltune's own samplers, in addition to Optuna's. Their modules import Optuna, so they are imported only when used."""

from traindoctor.checks.base import Check
from traindoctor.checks.optimizer.adam_settings_bad import adam_settings_bad
from traindoctor.checks.optimizer.lr_schedule_wrong import lr_schedule_wrong
from traindoctor.checks.optimizer.lr_too_high import lr_too_high
from traindoctor.checks.optimizer.lr_too_low import lr_too_low
from traindoctor.checks.optimizer.no_warmup import no_warmup
from traindoctor.checks.optimizer.optimizer_holds_stale_params import optimizer_holds_stale_params
from traindoctor.checks.optimizer.optimizer_never_steps import optimizer_never_steps
from traindoctor.checks.optimizer.optimizer_state_reset import optimizer_state_reset
from traindoctor.checks.optimizer.params_not_in_optimizer import params_not_in_optimizer
from traindoctor.checks.optimizer.weight_decay_too_high import weight_decay_too_high

CHECKS: tuple[Check, ...] = (
    lr_too_high,
    no_warmup,
    lr_too_low,
    lr_schedule_wrong,
    params_not_in_optimizer,
    optimizer_holds_stale_params,
    optimizer_state_reset,
    optimizer_never_steps,
    weight_decay_too_high,
    adam_settings_bad,
)

"""Ready-made ops, one family per file: each a formula, a formula and its relaxation, or a formula and a rule."""

from pullback.catalog.logs import log1mexp as log1mexp
from pullback.catalog.logs import log_sigmoid as log_sigmoid
from pullback.catalog.logs import softplus as softplus
from pullback.catalog.modifiers import clip_grad as clip_grad
from pullback.catalog.modifiers import reverse_grad as reverse_grad
from pullback.catalog.modifiers import scale_grad as scale_grad
from pullback.catalog.modifiers import stop_grad as stop_grad
from pullback.catalog.safe import safe_acos as safe_acos
from pullback.catalog.safe import safe_norm as safe_norm
from pullback.catalog.safe import safe_normalize as safe_normalize
from pullback.catalog.safe import safe_sqrt as safe_sqrt
from pullback.catalog.safe import where_safe as where_safe
from pullback.catalog.straight_through import binary_sign_ste as binary_sign_ste
from pullback.catalog.straight_through import clipped_binary_sign_ste as clipped_binary_sign_ste
from pullback.catalog.straight_through import clipped_floor_ste as clipped_floor_ste
from pullback.catalog.straight_through import clipped_round_ste as clipped_round_ste
from pullback.catalog.straight_through import clipped_sign_ste as clipped_sign_ste
from pullback.catalog.straight_through import floor_ste as floor_ste
from pullback.catalog.straight_through import round_ste as round_ste
from pullback.catalog.straight_through import sign_ste as sign_ste
from pullback.catalog.surrogates import spike_arctan as spike_arctan
from pullback.catalog.surrogates import spike_fast_sigmoid as spike_fast_sigmoid
from pullback.catalog.surrogates import spike_sigmoid as spike_sigmoid
from pullback.catalog.surrogates import spike_triangle as spike_triangle

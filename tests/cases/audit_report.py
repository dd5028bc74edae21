"""Documents of an audit made by hand, of findings that say what they are: what the tests of the
report share.
"""

from accounting import gaussian, loss
from accounting.guarantee import no_guarantee, priced
from experiments.audit import report as audit_report
from experiments.audit import trial as audit_trial

SECRET = 8675309.5  # measured on the ratings, wherever it stands
PERSON = "person-4711"
VERDICTS = ("violated", "consistent", "inconclusive", "not applicable")


def guarantee(status="proved"):
    told = {
        "mechanism": "m",
        "released": ("user factors",),
        "trust_model": "trusted curator: one party holds it all",
    }
    if status == "none":
        return no_guarantee(num_steps=3, **told)
    return priced(
        losses=(loss.Gaussian(num_steps=3, noise_multiplier=2.0),),
        delta=1e-5,
        unit="rating value",
        relation="one rating's value differs",
        status=status,
        sensitivity=1.0,
        against=(("the server", "sees all of it"),),
        **told,
    )


def finding(verdict="consistent", audit="sensitivity: largest step", **change):
    family = audit.partition(":")[0]
    measured = None if verdict in ("inconclusive", "not applicable") else SECRET
    details = {
        "pairs": 8,
        "power": f"anything above {SECRET} would be seen",
        "surprise": SECRET,
        "replay": {
            "pair": {"user": PERSON, "item": PERSON},
            "step": 2,
            "key": [0, 1],
            "data_sha256": "c0ffee",
        },
    }
    details |= {} if measured is not None else {"why": "it is so"}
    told = {
        "mechanism": "m",
        "family": family,
        "audit": audit,
        "claim": "nothing moves",
        "verdict": verdict,
        "measured": measured,
        "claimed": 1.0,
        "lower": measured,
        "upper": None,
        "confidence": 1.0,
        "details": details,
    }
    return told | change


def trial(findings, *, status="proved", label="m", data="some ratings", **change):
    """(what is said of a trial, its findings), as `audit_trial.run` gives them."""
    promised = guarantee(status)
    told = {
        "label": label,
        "why": "",
        "mechanism": "m",
        "data": data,
        "steps": 3,
        "phases": ["m"],
        "guarantee": promised.to_dict() | {"headline": promised.headline},
        "curve": audit_trial.curve(promised),
        "settings": {"rank": 3},
        "notes": [f"{SECRET} ratings left out"],
        "utility": {
            "rmse": SECRET,
            "why": None,
            "controls": {"global_mean": {"rmse_train": SECRET}},
        },
        "source": {"command": {"target": "/somewhere/ratings.csv"}, "label": label},
        "data_sha256": "c0ffee",
        "seconds": {"sensitivity": 1.0},
    }
    return told | change, findings


def document(*trials, self_test=()):
    return audit_report.document(
        trials,
        seed=7,
        sizes={"quick": False, "delta": None, "neighbours": 8},
        self_test=self_test,
    )


CAUGHT = {
    "bug": "half the noise",
    "audit": "noise: scale",
    "caught": True,
    "measured": 1.0,
    "claimed": 2.0,
    "sound": "consistent",
}
EXACT = gaussian.epsilon_exact(3 / (2 * 2.0**2), 1e-5)

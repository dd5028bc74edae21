"""The sentences that several guarantees share: each assumption is worded once."""

# Who holds what.
CURATOR = (
    "trusted curator: one party holds the ratings, runs the training and reveals nothing but the"
    " release"
)
NO_THIRD_PARTY = ("third party", "there is none")

# Of sums that are opened and nothing else: a third party adds masked messages up.
MASKED = (
    "third party",
    ("uniform elements of a finite group, whatever the data are: it sees who takes part, no more"),
)
TOGETHER = (
    "recommender + third party",
    "nothing: they take the masks off every single message",
)
NOT_TOGETHER = "the recommender and the third party together, who can take every mask off"
APART = (
    "the recommender and the third party do not collude, and masks are uniform on a finite group"
)

# Of shares of noise, where a user with all data less is the neighbour: a share less would be seen.
EMPTY_MESSAGES = (
    "a user without ratings takes part as everybody does, with an empty message and a share of"
    " noise: that a device takes part is not hidden, only whether it has ratings"
)

# Of joint privacy.
JOINTLY = (
    (
        "everybody but the user",
        "the claim, joint: the release and what all other users are shown, together",
    ),
    ("whoever sees a user's own list", "nothing: it is made of her own ratings"),
)
OWN_LIST = "what a user is shown, which follows from her own ratings"

# What is public, and was chosen without the ratings.
MASK = "who rated what is public"
FEATURES = "the features of the items are public, and were not made from the ratings"
BUDGETS = (
    "everybody's budget was declared beforehand, as the catalogue was, and was not made from the"
    " ratings; the table of budgets is public, and who declared which is not hidden"
)
SETTINGS = (
    "the number of steps, the centre, the clips and all other settings were chosen without looking"
    " at the ratings"
)
CATALOGUE = "the catalogue of users and items and the declared rating range are public"
DECLARED = (
    "the catalogue was declared, not read off the ratings, and covers every user and item there"
    " could be"
)

# What float32 noise is, for the assumptions of what draws it: jax.random.normal, and
# jax.random.laplace or exponential.
FLOAT32_NORMALS = (
    "noise is pseudo-random, from a 64-bit key, and float32: at most 2^23 values a draw, none"
    " beyond 5.42 standard deviations; sums are float32"
)
FLOAT32_LAPLACE = (
    "noise is pseudo-random, from a 64-bit key, and float32: at most 2^24 values a draw, none"
    " beyond 16 scales; sums are float32"
)
# What it is where it is drawn by comparing random bits with thresholds, and leaves no gaps.
WHOLE_NUMBERS = "noise is pseudo-random and, like the sums, whole numbers"
# What it is where tables hold its law; the losses of `accounting.loss` have the distance.
ROUNDED_NORMALS = (
    "the key of the noise is secret and uniform, and what is drawn from it cannot be told from"
    " random bits; noise and sums are whole numbers, exact on any machine"
)

# A report's own randomness.
REAL_RANDOMNESS = (
    "real randomness: the bit's probability is a float, the generator is secure and its seed secret"
)

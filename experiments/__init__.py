PROJECT = "dpmf-jax"  # see dpmf_jax.installed

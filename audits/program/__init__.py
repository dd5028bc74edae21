"""Audits of a whole program that fits a mechanism and writes its release."""

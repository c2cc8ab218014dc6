"""Names that other programs see: API group, finalizer, field manager, defaults of the command line."""

GROUP = "memory-operator.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "memory"

FINALIZER = f"{GROUP}/finalizer"
FIELD_MANAGER = "memory-operator"

MINIMUM_SPICEDB = (1, 57, 1)
"""Older servers let expired relationships grant access (GHSA-w278-32qg-48q5 and cached results)."""

"""What can go wrong, and what the reconcile loop does about it.

* Error
    * InvalidIdentityError      a name that can't become a SpiceDB id; final until the resource changes
    * SpiceDBError
        * SpiceDBUnavailableError  away, slow, restarting or refusing our key: retried, nothing is assumed
        * SpiceDBRefusedError      the server says that the request itself is wrong: one bad unit, isolated
    * KubernetesError           the API server refused or did not answer: retried
        * NotFoundError         the object is gone: nothing left to do
        * ConflictError         somebody else changed it first: read again, then retry

Messages name the object, the problem and what to do; they never hold a token or memory content.
"""


class Error(Exception):
    """The root of all errors that this package raises on purpose."""


class InvalidIdentityError(Error, ValueError):
    """A name or id can't be encoded as a SpiceDB object id."""


class SpiceDBError(Error):
    """A call to SpiceDB did not succeed."""


class SpiceDBUnavailableError(SpiceDBError):
    """SpiceDB can't answer now; the same call may succeed later."""


class SpiceDBRefusedError(SpiceDBError):
    """SpiceDB refused the content of a request; the same call will fail again."""


class KubernetesError(Error):
    """A call to the Kubernetes API did not succeed."""


class NotFoundError(KubernetesError):
    """The object does not exist any more."""


class ConflictError(KubernetesError):
    """The object was changed by somebody else since it was read."""

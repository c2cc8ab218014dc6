"""A cluster to test on: the same verbs (up, down, status) on whatever the machine has.

* `kind`: a node in Docker, where Docker answers.
* `local`: real Kubernetes processes on this machine, without Docker. With `control_plane=True` only
  etcd, the API server and the controllers: no root, no node, ready in seconds.
* `current`: the cluster that KUBECONFIG points to.

The command line is `python -m tests.cluster`; from Python it is `up(...)`, which returns a `Cluster`.
"""

from tests.cluster.cluster import Cluster, Images
from tests.cluster.host import ClusterError
from tests.cluster.providers import down, status, up

__all__ = ["Cluster", "ClusterError", "Images", "down", "status", "up"]

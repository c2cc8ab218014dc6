"""memory-operator: who may recall what, as custom resources kept true in SpiceDB.

A map of the package, from the ground up; each layer imports only what stands above it here.

* ground: `names`, `errors`, `settings`
* shapes: `api` (the three custom resources), `identity` (ids of SpiceDB objects)
* decisions, pure: `relationships` (values and the diff), `desired` (resource to relationships),
  `conditions` (what the status says), `crds` (models to CustomResourceDefinitions)
* gateways: `spicedb`, `kube`
* glue: `workqueue`, `reconcile`, `drift`, with `audit` and `metrics`
* edges: `handlers` (kopf), `http` (probes and metrics), `__main__` (the command line)
"""

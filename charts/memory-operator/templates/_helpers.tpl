{{/*
Name of all objects. Short enough that with the longest suffix it still names a Service (63).
*/}}
{{- define "memory-operator.fullname" -}}
{{- $name := .Values.fullnameOverride }}
{{- if not $name }}
{{- $name = contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- end }}
{{- $name | trunc 48 | trimSuffix "-" }}
{{- end }}

{{- define "memory-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: memory-operator
{{- end }}

{{/*
By these a component's pods are found. Never to be changed: a Deployment's selector is immutable.
Takes (list $ "component").
*/}}
{{- define "memory-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ (first .).Chart.Name }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/*
Label of every pod that may speak to the embedded SpiceDB.
*/}}
{{- define "memory-operator.spicedbClientLabel" -}}
memory-operator.dev/spicedb-client: "true"
{{- end }}

{{/*
Takes (list image defaultTag).
*/}}
{{- define "memory-operator.image" -}}
{{- $image := first . }}
{{- $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default (last .) }}{{ end }}
{{- end }}

{{/*
What every pod of the chart has: the "restricted" Pod Security Standard, and where it runs.
Service links are off: they put variables into the environment that begin like the program's own.
*/}}
{{- define "memory-operator.podSpec" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "memory-operator.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
Refuse values that contradict each other, where the schema can't say it in clear words.
*/}}
{{- define "memory-operator.validate" -}}
{{- $embedded := .Values.spicedb.embedded }}
{{- $external := .Values.spicedb.external }}
{{- if not (regexMatch "^([^\\s/]+:[0-9]{1,5})?$" $external.endpoint) }}
{{- fail (printf "spicedb.external.endpoint is host:port, without https:// or a path; not %q." $external.endpoint) }}
{{- end }}
{{- if and $embedded.enabled $external.endpoint }}
{{- fail "Two SpiceDBs: either set spicedb.embedded.enabled=false, or leave spicedb.external.endpoint empty." }}
{{- end }}
{{- if not (or $embedded.enabled $external.endpoint) }}
{{- fail "No SpiceDB: set spicedb.external.endpoint (host:port), or spicedb.embedded.enabled=true." }}
{{- end }}
{{- if and $embedded.enabled (eq $embedded.datastoreEngine "postgres") (not $embedded.datastoreUriSecret.name) }}
{{- fail "spicedb.embedded.datastoreEngine=postgres needs spicedb.embedded.datastoreUriSecret.name: the Secret with Postgres' URI." }}
{{- end }}
{{- if and $external.endpoint (not $external.tokenSecret.name) }}
{{- fail "spicedb.external.endpoint needs spicedb.external.tokenSecret.name: the Secret with SpiceDB's preshared key." }}
{{- end }}
{{- if and $external.ca.secretName $external.ca.configMapName }}
{{- fail "Two CA bundles: set spicedb.external.ca.secretName or spicedb.external.ca.configMapName." }}
{{- end }}
{{- if and $external.insecure (or $external.ca.secretName $external.ca.configMapName) }}
{{- fail "spicedb.external.insecure=true speaks plaintext: a CA bundle (spicedb.external.ca) contradicts it." }}
{{- end }}
{{- if has .Release.Namespace .Values.watchNamespaces }}
{{- fail (printf "watchNamespaces contains %s, the operator's own namespace: no organisation can live there." .Release.Namespace) }}
{{- end }}
{{- end }}

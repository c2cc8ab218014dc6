{{/*
How the operator, the test and (later) other services reach SpiceDB, embedded or not:
environment variables, mounts and volumes of a container that runs the project's image.
*/}}
{{- define "memory-operator.spicedbEnv" -}}
- name: MEMORY_OPERATOR_SPICEDB_ENDPOINT
  value: {{ include "memory-operator.spicedbEndpoint" . | quote }}
- name: MEMORY_OPERATOR_SPICEDB_TOKEN_FILE
  value: /etc/memory-operator/spicedb-token/token
{{- if include "memory-operator.spicedbCaSource" . }}
- name: MEMORY_OPERATOR_SPICEDB_CA_FILE
  value: /etc/memory-operator/spicedb-ca/ca.crt
{{- end }}
{{- if include "memory-operator.spicedbInsecure" . }}
- name: MEMORY_OPERATOR_SPICEDB_INSECURE
  value: "true"
{{- end }}
- name: MEMORY_OPERATOR_ID_PREFIX
  value: {{ .Values.idPrefix | quote }}
- name: MEMORY_OPERATOR_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{/*
Whole directories, never a subPath: only those follow a Secret that changes.
*/}}
{{- define "memory-operator.spicedbMounts" -}}
- name: spicedb-token
  mountPath: /etc/memory-operator/spicedb-token
  readOnly: true
{{- if include "memory-operator.spicedbCaSource" . }}
- name: spicedb-ca
  mountPath: /etc/memory-operator/spicedb-ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "memory-operator.spicedbVolumes" -}}
- name: spicedb-token
  secret:
    defaultMode: 0440
    {{- if .Values.spicedb.embedded.enabled }}
    secretName: {{ include "memory-operator.spicedbKeySecret" . }}
    items:
      - key: preshared_key
        path: token
    {{- else }}
    secretName: {{ .Values.spicedb.external.tokenSecret.name }}
    items:
      - key: {{ .Values.spicedb.external.tokenSecret.key }}
        path: token
    {{- end }}
{{- with include "memory-operator.spicedbCaSource" . }}
- name: spicedb-ca
  {{- trim . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "memory-operator.spicedbEndpoint" -}}
{{- if .Values.spicedb.embedded.enabled }}
{{- include "memory-operator.fullname" . }}-spicedb.{{ .Release.Namespace }}.svc:50051
{{- else }}
{{- .Values.spicedb.external.endpoint }}
{{- end }}
{{- end }}

{{/*
"true" or nothing.
*/}}
{{- define "memory-operator.spicedbInsecure" -}}
{{- $spicedb := .Values.spicedb }}
{{- if $spicedb.embedded.enabled | ternary (not $spicedb.embedded.tls.enabled) $spicedb.external.insecure }}true{{ end }}
{{- end }}

{{/*
The volume source of the CA bundle; nothing means the system's roots, or no TLS.
*/}}
{{- define "memory-operator.spicedbCaSource" -}}
{{- $embedded := .Values.spicedb.embedded }}
{{- $ca := .Values.spicedb.external.ca }}
{{- if $embedded.enabled }}
{{- if $embedded.tls.enabled }}
secret:
  secretName: {{ include "memory-operator.spicedbTlsSecret" . }}
  # Not the private key beside it.
  items:
    - key: ca.crt
      path: ca.crt
{{- end }}
{{- else if $ca.secretName }}
secret:
  secretName: {{ $ca.secretName }}
  items:
    - key: {{ $ca.key }}
      path: ca.crt
{{- else if $ca.configMapName }}
configMap:
  name: {{ $ca.configMapName }}
  items:
    - key: {{ $ca.key }}
      path: ca.crt
{{- end }}
{{- end }}

{{- define "memory-operator.spicedbKeySecret" -}}
{{- .Values.spicedb.embedded.existingSecret | default (printf "%s-spicedb-key" (include "memory-operator.fullname" .)) }}
{{- end }}

{{- define "memory-operator.spicedbTlsSecret" -}}
{{- .Values.spicedb.embedded.tls.existingSecret | default (printf "%s-spicedb-tls" (include "memory-operator.fullname" .)) }}
{{- end }}

{{/*
The embedded SpiceDB's generated secrets, as data of Secrets: those in the cluster if there are any,
else new ones. They are kept in .Values while the chart is rendered, for all templates to see the same:
the Secrets themselves, and the checksums by which pods roll.
*/}}
{{- define "memory-operator.generateSpicedbSecrets" -}}
{{- if not (hasKey .Values.spicedb.embedded "generated") }}
{{- $generated := dict }}
{{- $key := lookup "v1" "Secret" .Release.Namespace (include "memory-operator.spicedbKeySecret" .) }}
{{- $_ := set $generated "key" ($key.data | default (dict "preshared_key" (randAlphaNum 48 | b64enc))) }}
{{- $tls := lookup "v1" "Secret" .Release.Namespace (include "memory-operator.spicedbTlsSecret" .) }}
{{- if $tls.data }}
{{- $_ := set $generated "tls" $tls.data }}
{{- else }}
{{- $host := printf "%s-spicedb" (include "memory-operator.fullname" .) }}
{{- $names := list
      $host
      (printf "%s.%s" $host .Release.Namespace)
      (printf "%s.%s.svc" $host .Release.Namespace)
      (printf "%s.%s.svc.cluster.local" $host .Release.Namespace)
      "localhost" }}
{{/* The authority's private key is dropped: nobody can ever sign with it again. */}}
{{- $ca := genCA "memory-operator-spicedb-ca" 3650 }}
{{- $certificate := genSignedCert "spicedb" nil $names 3650 $ca }}
{{- $_ := set $generated "tls" (dict
      "ca.crt" ($ca.Cert | b64enc)
      "tls.crt" ($certificate.Cert | b64enc)
      "tls.key" ($certificate.Key | b64enc)) }}
{{- end }}
{{- $_ := set .Values.spicedb.embedded "generated" $generated }}
{{- end }}
{{- end }}

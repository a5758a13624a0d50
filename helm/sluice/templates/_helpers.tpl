{{/* The release's name; "-sluice" is appended if it does not contain "sluice". */}}
{{- define "sluice.name" -}}
{{- if contains "sluice" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-sluice" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sluice.monitoringLabels" -}}
{{ include "sluice.labels" . }}
{{- with .Values.monitoring.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "sluice.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "sluice.name" .) }}
{{- else }}{{ required "serviceAccount.name is required if serviceAccount.create is false: the operator's roles are bound to it" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{/* (list . "operator"): registry/name:tag, or registry/name@digest */}}
{{- define "sluice.image" -}}
{{- $root := index . 0 }}
{{- $image := $root.Values.image }}
{{- with $image.registry }}{{ . }}/{{ end }}{{ index $image (index . 1) }}
{{- with index ($image.digests | default dict) (index . 1) }}@{{ . }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* (list TEXT PART): the rules of a part of files/rbac.yaml: jobs or leader. */}}
{{- define "sluice.rules" -}}
{{- $rules := index . 0 | fromYaml }}
{{- toYaml (index $rules (index . 1)) }}
{{- end }}

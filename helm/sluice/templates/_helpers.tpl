{{/* Names are the release's; "sluice" in it is not said twice. */}}
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
{{- else }}{{ required "serviceAccount.name is needed where serviceAccount.create is false: the operator's rights are bound to it" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{/* (list . "operator"): registry/name:tag, or registry/name@digest */}}
{{- define "sluice.image" -}}
{{- $root := index . 0 }}
{{- $image := $root.Values.image }}
{{- with $image.registry }}{{ . }}/{{ end }}{{ index $image (index . 1) }}
{{- with index ($image.digests | default dict) (index . 1) }}@{{ . }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* What operator/rbac.yaml says, in namespaces of jobs or at the lease. */}}
{{- define "sluice.rules" -}}
{{- $rules := index . 0 | fromYaml }}
{{- toYaml (index $rules (index . 1)) }}
{{- end }}
